"""Operators of torch over the graphs of heddle.cudnn; they need torch."""
