/* One image of kernels, compiled ahead of time: the file IMAGE as the constant NAME. */
    .section .rodata
    .global NAME
    .hidden NAME
    .balign 64
NAME:
    .incbin IMAGE
    .section .note.GNU-stack, "", %progbits
