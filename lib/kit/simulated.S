/* One image of kernels for the simulated device (struct simulated_object of ctitan/lib/cuda/simulator.h):
   the shared object IMAGE as the constant NAME. */
    .section .rodata
    .global NAME
    .hidden NAME
    .balign 64
NAME:
    .ascii "compiled"
    .quad 2f - 1f
1:  .incbin IMAGE
2:
    .section .note.GNU-stack, "", %progbits
