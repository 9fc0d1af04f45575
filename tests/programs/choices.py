"""The choices a random program is made of: each by name, from the seed and that name alone, so that one can be changed
and the others stay."""

import random


class Choices:
    def __init__(self, seed, fixed=None):
        self.seed, self.fixed, self.made = seed, dict(fixed or {}), {}
        # Most programs are ordinary but for a few things: what is odd everywhere is seldom attention any more.
        self._oddness = random.Random(f"{seed} oddness").choice((0.05, 0.1, 0.3, 0.7))

    def __call__(self, name, plain, *others, often=0.5):
        """`plain`, or as often as said one of the others."""
        chance = random.Random(f"{self.seed} {name}")
        value = chance.choice(others) if others and chance.random() < often * self._oddness else plain
        if name in self.fixed:
            value = next((x for x in (plain, *others) if str(x) == str(self.fixed[name])), plain)
        if value != plain:
            self.made[name] = value
        return value

    def any(self, name, *options):
        """One of the options, each as likely in every program."""
        value = random.Random(f"{self.seed} {name}").choice(options)
        if name in self.fixed:
            value = next((x for x in options if str(x) == str(self.fixed[name])), options[0])
        if value != options[0]:
            self.made[name] = value
        return value

    def yes(self, name, often):
        return self(name, False, True, often=often)

    def size(self, name, *sizes):
        """One of the sizes, each as likely."""
        chance = random.Random(f"{self.seed} {name}")
        value = chance.choice(sizes)
        return int(self.fixed.get(name, value))

    def some(self, name, items, often):
        """A part of the items in their order, each as often as said."""
        return [x for x in items if self.yes(f"{name} {x}", often)]

    def order(self, name, items):
        """The items in a random order."""
        items = list(items)
        if name not in self.fixed:
            random.Random(f"{self.seed} {name}").shuffle(items)
        return items
