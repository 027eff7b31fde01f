/*
 * Whether the plugins' declarations of NVIDIA's interfaces are those of the headers installed.
 */
#include <stdio.h>
#include <string.h>

#include <cublasLt.h>
#include <cuda.h>
#include <cudnn.h>
#include <nccl.h>

#include "names.h"

static const struct declared theirs[] = DECLARED;

int main(void)
{
    int wrong = 0;

    for (size_t i = 0; theirs[i].name; i++)
        if (strcmp(theirs[i].name, own_declarations[i].name) ||
            theirs[i].value != own_declarations[i].value) {
            printf("%s is %ld, and declared as %ld\n", theirs[i].name, theirs[i].value,
                   own_declarations[i].value);
            wrong++;
        }
    return wrong != 0;
}
