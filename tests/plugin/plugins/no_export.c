#include "common.h"

extern CT_API const int ct_something_else;
const int ct_something_else = 1;
