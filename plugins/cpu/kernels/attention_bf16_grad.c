/* The gradient of attention with products in bfloat16, on a unit. */
#define ON_UNIT true
#include "attention_grad.c"
