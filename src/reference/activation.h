// Activations in f64, and how they change.
#pragma once

#include "reference/pointwise.h"

namespace heddle::reference {

double sigmoid(double x);

/// apply() and partials() of the modes that graph::is_activation() has.
double apply_activation(graph::PointwiseMode mode, const graph::ActivationNumbers& numbers,
                        double a, double b);
Partials activation_partials(graph::PointwiseMode mode, const graph::ActivationNumbers& numbers,
                             double a, double b);

}  // namespace heddle::reference
