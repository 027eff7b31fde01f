/* fuse_header_text: the header that every generated source includes, made of three headers. */
    .section .rodata
    .global fuse_header_text
    .hidden fuse_header_text
fuse_header_text:
    .incbin PRELUDE
    .incbin VECTOR
    .incbin FUNCTIONS
    .byte 0
    .section .note.GNU-stack, "", %progbits
