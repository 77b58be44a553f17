// AMSGrad (Reddi, Kale & Kumar, 2018, arXiv:1904.09237) as torch.optim.Adam and AdamW have it: Adam, divided by the
// largest second moment so far instead of the present one. With t, g, step_size, c2 and decay as in adam.h:
//
//   exp_avg        <- beta1 * exp_avg    + (1 - beta1) * g
//   exp_avg_sq     <- beta2 * exp_avg_sq + (1 - beta2) * g * g
//   max_exp_avg_sq <- max(max_exp_avg_sq, exp_avg_sq)
//   param          <- decay * param - step_size * exp_avg / (sqrt(max_exp_avg_sq) / sqrt(c2) + eps)
//
// The maximum is of moments without their correction, which is applied to the maximum (the paper has none). Options
// and coefficients are Adam's; amsgrad_inl.h has the formula in code.
#pragma once

#include "kernels/formulas/adam.h"
