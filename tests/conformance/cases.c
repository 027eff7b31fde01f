/*
 * Cases by op type: odd sizes first, then sizes that fill vectors and threads.
 */
#include "conformance.h"

#define LINEAR(b, t, k, n)                                                                         \
    "input %x : T[" #b "," #t "," #k "]\n"                                                         \
    "param %w : T[" #n "," #k "]\n"                                                                \
    "input %dy : T[" #b "," #t "," #n "]\n"                                                        \
    "F - %y = linear(%x, %w) : T[" #b "," #t "," #n "]\n"                                          \
    "I - %dx = linear_dx(%dy, %w) : T[" #b "," #t "," #k "]\n"                                     \
    "W - %dw = linear_dw(%x, %dy) : T[" #n "," #k "]\n"                                            \
    "W - %dw32 = linear_dw(%x, %dy) : float32![" #n "," #k "]\n"

#define LINEARS(b, t, k, n0, n1, n2)                                                               \
    "input %x : T[" #b "," #t "," #k "]\n"                                                         \
    "param %w0 : T[" #n0 "," #k "]\n"                                                              \
    "param %w1 : T[" #n1 "," #k "]\n"                                                              \
    "param %w2 : T[" #n2 "," #k "]\n"                                                              \
    "input %dy0 : T[" #b "," #t "," #n0 "]\n"                                                      \
    "input %dy1 : T[" #b "," #t "," #n1 "]\n"                                                      \
    "input %dy2 : T[" #b "," #t "," #n2 "]\n"                                                      \
    "F - %y0, %y1, %y2 = linear(%x, %w0, %w1, %w2) : T[" #b "," #t "," #n0 "], T[" #b "," #t       \
    "," #n1 "], T[" #b "," #t "," #n2 "]\n"                                                        \
    "I - %dx = linear_dx(%dy0, %dy1, %dy2, %w0, %w1, %w2) : T[" #b "," #t "," #k "]\n"             \
    "W - %dw0, %dw1, %dw2 = linear_dw(%x, %dy0, %dy1, %dy2) : float32![" #n0 "," #k                \
    "], float32![" #n1 "," #k "], float32![" #n2 "," #k "]\n"

/* As the precision transform leaves it: a float32 parameter and its cast. */
#define PARAMETER(w, n, k)                                                                         \
    "param %" w ".master : float32[" #n "," #k "]\n"                                               \
    "pre - %" w " = cast(%" w ".master) {dtype=\"T\"} : T[" #n "," #k "]\n"

#define MIXED(b, t, k, n0, n1)                                                                     \
    "input %x : T[" #b "," #t "," #k "]\n"                                                         \
    "input %dy0 : T[" #b "," #t "," #n0 "]\n"                                                      \
    "input %dy1 : T[" #b "," #t "," #n1 "]\n"                                                      \
    "input %labels : int32[" #b "," #t "]\n"                                                       \
    "scalar %dloss : float32[]\n" PARAMETER("w0", n0, k) PARAMETER(                                \
        "w1", n1,                                                                                  \
        k) "F - %y0, %y1 = linear(%x, %w0, %w1) : T[" #b "," #t "," #n0 "], T[" #b "," #t "," #n1  \
           "]\n"                                                                                   \
           "I - %dx0 = linear_dx(%dy0, %w0) : T[" #b "," #t "," #k "]\n"                           \
           "I - %dx = linear_dx(%dy0, %dy1, %w0, %w1) : T[" #b "," #t "," #k "]\n"                 \
           "F - %loss = linear_cross_entropy(%x, %w0, %labels) : float32[]\n"                      \
           "I - %dxl, %dwl, %loss2 = linear_cross_entropy_grad(%dloss, %x, %w0, %labels) : T[" #b  \
           "," #t "," #k "], float32![" #n0 "," #k "], float32[]\n"                                \
           "I - %dxf, %loss3 = linear_cross_entropy_dx(%dloss, %x, %w0, %labels) : T[" #b "," #t   \
           "," #k "], float32[]\n"

/* Gradients and their norms: of one product, of two, of products and others. Squares double the
   roundings of gradients. */
#define NORMS(t, k, n, v)                                                                          \
    "input %x : T[1," #t "," #k "]\n"                                                              \
    "input %dy : T[1," #t "," #n "]\n"                                                             \
    "param %other : float32[37]\n"                                                                 \
    "input %labels : int32[1," #t "]\n"                                                            \
    "scalar %dloss : float32[]\n" PARAMETER(                                                       \
        "w", v,                                                                                    \
        k) "W - %dw = linear_dw(%x, %dy) : float32![" #n "," #k "]\n"                              \
           "W - %dw0, %dw1 = linear_dw(%x, %x, %dy) : float32![" #k "," #k "], float32![" #n       \
           "," #k "]\n"                                                                            \
           "I - %dx, %dv, %loss = linear_cross_entropy_grad(%dloss, %x, %w, %labels) : T[1," #t    \
           "," #k "], float32![" #v "," #k "], float32[]\n"                                        \
           "post - %one = squared_norm(%dw) : float64[]\n"                                         \
           "post - %two = squared_norm(%dw0, %dw1) : float64[]\n"                                  \
           "post - %three = squared_norm(%dv) : float64[]\n"                                       \
           "post - %some = squared_norm(%dw, %dw0, %dw1) : float64[]\n"                            \
           "post - %half = squared_norm(%dw1, %other) : float64[]\n"

#define SWIGLU(t, k, f)                                                                            \
    "input %x : T[1," #t "," #k "]\n"                                                              \
    "input %dy : T[1," #t "," #k "]\n" PARAMETER("gate", f, k) PARAMETER("up", f, k)               \
        PARAMETER("down", k, f) "F - %g, %u = linear(%x, %gate, %up) : T[1," #t "," #f             \
                                "], T[1," #t "," #f "]\n"                                          \
                                "F - %h = swiglu(%g, %u) : T[1," #t "," #f "]\n"                   \
                                "I - %dh = linear_dx(%dy, %down) : T[1," #t "," #f "]\n"           \
                                "I - %dg, %du = swiglu_grad(%dh, %g, %u) : T[1," #t "," #f         \
                                "], T[1," #t "," #f "]\n"

#define LOSS(b, t, k, v)                                                                           \
    "input %x : T[" #b "," #t "," #k "]\n"                                                         \
    "param %w : T[" #v "," #k "]\n"                                                                \
    "input %labels : int32[" #b "," #t "]\n"                                                       \
    "scalar %dloss : float32[]\n"                                                                  \
    "F - %loss = linear_cross_entropy(%x, %w, %labels) : float32[]\n"                              \
    "I - %dx, %dw, %loss2 = linear_cross_entropy_grad(%dloss, %x, %w, %labels) : T[" #b "," #t     \
    "," #k "], float32![" #v "," #k "], float32[]\n"                                               \
    "I - %dx2, %dw2, %loss3 = linear_cross_entropy_grad(%dloss, %x, %w, %labels) : T[" #b "," #t   \
    "," #k "], T[" #v "," #k "], float32[]\n"                                                      \
    "I - %dx3, %loss4 = linear_cross_entropy_dx(%dloss, %x, %w, %labels) : T[" #b "," #t "," #k    \
    "], float32[]\n"

#define LOGITS(b, t, v)                                                                            \
    "input %logits : T[" #b "," #t "," #v "]\n"                                                    \
    "input %labels : int32[" #b "," #t "]\n"                                                       \
    "scalar %dloss : float32[]\n"                                                                  \
    "F - %loss, %lse = cross_entropy(%logits, %labels) : float32[], float32[" #b "," #t "]\n"      \
    "I - %dlogits = cross_entropy_grad(%dloss, %logits, %labels, %lse) : T[" #b "," #t "," #v      \
    "]\n"

#define SHARDS(b, t, v, p)                                                                         \
    "input %logits : T[" #b "," #t "," #v "]\n"                                                    \
    "input %labels : int32[" #b "," #t "]\n"                                                       \
    "scalar %dloss : float32[]\n"                                                                  \
    "F - %stats = cross_entropy_partial(%logits, %labels) {shards=" #p "} : float32[" #b "," #t    \
    "," #p ",3]\n"                                                                                 \
    "F - %loss, %lse = cross_entropy_merge(%stats, %labels) : float32[], float32[" #b "," #t "]\n" \
    "I - %dstats = cross_entropy_merge_grad(%dloss, %stats, %labels, %lse) : float32[" #b "," #t   \
    "," #p ",3]\n"                                                                                 \
    "I - %dlogits = cross_entropy_partial_grad(%dstats, %stats, %logits, %labels) : T[" #b "," #t  \
    "," #v "]\n"

#define NORM(b, t, k) NORM_OFFSET(b, t, k, "0")
#define NORM_OFFSET(b, t, k, o)                                                                    \
    "input %x : T[" #b "," #t "," #k "]\n"                                                         \
    "input %r : T[" #b "," #t "," #k "]\n"                                                         \
    "input %dy : T[" #b "," #t "," #k "]\n"                                                        \
    "param %w : T[" #k "]\n"                                                                       \
    "F - %y, %rstd = rms_norm(%x, %w) {eps=1e-5, offset=" o "} : T[" #b "," #t "," #k              \
    "], float32[" #b "," #t "]\n"                                                                  \
    "F - %y2, %sum, %rstd2 = add_rms_norm(%x, %r, %w) {eps=1e-5, offset=" o "} : T[" #b "," #t     \
    "," #k "], T[" #b "," #t "," #k "], float32[" #b "," #t "]\n"                                  \
    "I - %dx, %dw = rms_norm_grad(%dy, %x, %w, %rstd, _) {offset=" o "} : T[" #b "," #t "," #k     \
    "], float32![" #k "]\n"                                                                        \
    "I - %dx2, %dw2 = rms_norm_grad(%dy, %sum, %w, %rstd2, %r) {offset=" o "} : T[" #b "," #t      \
    "," #k "], T[" #k "]\n"

/* Rows times a number each: one that is given, or the root of their mean square, inverted. */
#define ROWS(b, t, k)                                                                              \
    "input %x : T[" #b "," #t "," #k "]\n"                                                         \
    "input %dy : T[" #b "," #t "," #k "]\n"                                                        \
    "input %w : float32[" #b "," #t "]\n"                                                          \
    "F - %y, %rstd = rms_norm_plain(%x) {eps=1e-5} : T[" #b "," #t "," #k "], float32[" #b "," #t  \
    "]\n"                                                                                          \
    "F - %z = scale_rows(%x, %w) : T[" #b "," #t "," #k "]\n"                                      \
    "F - %one = ones(%w) : float32[" #b "," #t "]\n"                                               \
    "I - %dx = rms_norm_plain_grad(%dy, %x, %rstd) : T[" #b "," #t "," #k "]\n"                    \
    "I - %dx2, %dw = scale_rows_grad(%dy, %x, %w) : T[" #b "," #t "," #k "], float32[" #b "," #t   \
    "]\n"

#define ELEMENTWISE(b, t, k)                                                                       \
    "input %x : T[" #b "," #t "," #k "]\n"                                                         \
    "input %y : T[" #b "," #t "," #k "]\n"                                                         \
    "input %dz : T[" #b "," #t "," #k "]\n"                                                        \
    "F - %sum = add(%x, %y) : T[" #b "," #t "," #k "]\n"                                           \
    "F - %ring = tp_async.ring_sum(%x, %y, %sum) : T[" #b "," #t "," #k "]\n"                      \
    "F - %z = swiglu(%x, %y) : T[" #b "," #t "," #k "]\n"                                          \
    "I - %dx, %dy = swiglu_grad(%dz, %x, %y) : T[" #b "," #t "," #k "], T[" #b "," #t "," #k "]\n" \
    "F - %narrow = cast(%x) {dtype=\"bfloat16\"} : bfloat16[" #b "," #t "," #k "]\n"               \
    "F - %wide = cast(%x) {dtype=\"float32\"} : float32[" #b "," #t "," #k "]\n"

#define ATTENTION(b, t, h, g, d, e, documents)                                                     \
    "input %q : T[" #b "," #t "," #h "," #d "]\n"                                                  \
    "input %k : T[" #b "," #t "," #g "," #d "]\n"                                                  \
    "input %v : T[" #b "," #t "," #g "," #e "]\n"                                                  \
    "input %do : T[" #b "," #t "," #h "," #e "]\n"                                                 \
    "input %documents : int32[" #b "," #t "]\n"                                                    \
    "F - %o, %lse = attention(%q, %k, %v, " documents ") : T[" #b "," #t "," #h "," #e             \
    "], float32[" #b "," #h "," #t "]\n"                                                           \
    "I - %dq, %dk, %dv = attention_grad(%do, %q, %k, %v, %o, %lse, " documents ") : T[" #b "," #t  \
    "," #h "," #d "], T[" #b "," #t "," #g "," #d "], T[" #b "," #t "," #g "," #e "]\n"

#define DOCUMENTS(b, t, h, g, d, ids, how)                                                         \
    "input %q : T[" #b "," #t "," #h "," #d "]\n"                                                  \
    "input %k : T[" #b "," #t "," #g "," #d "]\n"                                                  \
    "input %v : T[" #b "," #t "," #g "," #d "]\n"                                                  \
    "input %do : T[" #b "," #t "," #h "," #d "]\n"                                                 \
    "input %" ids " : int32[" #b "," #t "]\n"                                                      \
    "F - %o, %lse = attention(%q, %k, %v, %" ids ") {" how "} : T[" #b "," #t "," #h "," #d        \
    "], float32[" #b "," #h "," #t "]\n"                                                           \
    "I - %dq, %dk, %dv = attention_grad(%do, %q, %k, %v, %o, %lse, %" ids ") {" how "} : T[" #b    \
    "," #t "," #h "," #d "], T[" #b "," #t "," #g "," #d "], T[" #b "," #t "," #g "," #d "]\n"

#define MASKED(b, t, s, h, g, d, e, how)                                                           \
    "input %q : T[" #b "," #t "," #h "," #d "]\n"                                                  \
    "input %k : T[" #b "," #s "," #g "," #d "]\n"                                                  \
    "input %v : T[" #b "," #s "," #g "," #e "]\n"                                                  \
    "input %do : T[" #b "," #t "," #h "," #e "]\n"                                                 \
    "F - %o, %lse = attention(%q, %k, %v, _) {" how "} : T[" #b "," #t "," #h "," #e               \
    "], float32[" #b "," #h "," #t "]\n"                                                           \
    "I - %dq, %dk, %dv = attention_grad(%do, %q, %k, %v, %o, %lse) {" how "} : T[" #b "," #t       \
    "," #h "," #d "], T[" #b "," #s "," #g "," #d "], T[" #b "," #s "," #g "," #e "]\n"

#define ACTIVATIONS(b, t, k)                                                                       \
    "input %x : T[" #b "," #t "," #k "]\n"                                                         \
    "input %dy : T[" #b "," #t "," #k "]\n"                                                        \
    "param %row : T[" #k "]\n"                                                                     \
    "F - %m = mul(%x, %dy) : T[" #b "," #t "," #k "]\n"                                            \
    "F - %c = scale(%x) {factor=-0.3} : T[" #b "," #t "," #k "]\n"                                 \
    "F - %s = silu(%x) : T[" #b "," #t "," #k "]\n"                                                \
    "F - %g = gelu(%x) : T[" #b "," #t "," #k "]\n"                                                \
    "F - %h = gelu(%x) {approximate=\"tanh\"} : T[" #b "," #t "," #k "]\n"                         \
    "F - %p = softmax(%x) : T[" #b "," #t "," #k "]\n"                                             \
    "F - %b = bias(%x, %row) : T[" #b "," #t "," #k "]\n"                                          \
    "I - %ds = silu_grad(%dy, %x) : T[" #b "," #t "," #k "]\n"                                     \
    "I - %dg = gelu_grad(%dy, %x) : T[" #b "," #t "," #k "]\n"                                     \
    "I - %dh = gelu_grad(%dy, %x) {approximate=\"tanh\"} : T[" #b "," #t "," #k "]\n"              \
    "I - %dp = softmax_grad(%dy, %p) : T[" #b "," #t "," #k "]\n"                                  \
    "W - %drow = bias_grad(%dy) : T[" #k "]\n"                                                     \
    "W - %drow32 = bias_grad(%dy) : float32![" #k "]\n"

/* Enough columns that threads share those of the sums. */
#define WIDE_SUM(b, t, k)                                                                          \
    "input %dy : T[" #b "," #t "," #k "]\n"                                                        \
    "W - %drow = bias_grad(%dy) : T[" #k "]\n"                                                     \
    "W - %drow32 = bias_grad(%dy) : float32![" #k "]\n"

#define SOFTMAX_SUM(b, t, k)                                                                       \
    "input %x : T[" #b "," #t "," #k "]\n"                                                         \
    "input %dsum : float32[" #k "]\n"                                                              \
    "F - %sum = softmax_sum(%x) : float32[" #k "]\n"                                               \
    "I - %dx = softmax_sum_grad(%dsum, %x) : T[" #b "," #t "," #k "]\n"

#define EXPERTS(b, t, n, f, e, k)                                                                  \
    "input %x : T[" #b "," #t "," #n "]\n"                                                         \
    "input %dy : T[" #b "," #t "," #n "]\n"                                                        \
    "input %weights : float32[" #b "," #t "," #k "]\n"                                             \
    "input %ids : int32[" #b "," #t "," #k "]\n"                                                   \
    "param %gate : T[" #e "," #f "," #n "]\n"                                                      \
    "param %up : T[" #e "," #f "," #n "]\n"                                                        \
    "param %down : T[" #e "," #n "," #f "]\n"                                                      \
    "F - %y = experts(%x, %weights, %ids, %gate, %up, %down) : T[" #b "," #t "," #n "]\n"          \
    "I - %dx, %dweights = experts_dx(%dy, %x, %weights, %ids, %gate, %up, %down) : T[" #b "," #t   \
    "," #n "], float32[" #b "," #t "," #k "]\n"                                                    \
    "W - %dgate, %dup, %ddown = experts_dw(%dy, %x, %weights, %ids, %gate, %up, %down) : "         \
    "float32![" #e "," #f "," #n "], float32![" #e "," #f "," #n "], float32![" #e "," #n "," #f   \
    "]\n"                                                                                          \
    "I - %ax, %aweights, %agate, %aup, %adown = experts_grad(%dy, %x, %weights, %ids, %gate, "     \
    "%up, %down) : T[" #b "," #t "," #n "], float32[" #b "," #t "," #k "], T[" #e "," #f "," #n    \
    "], T[" #e "," #f "," #n "], T[" #e "," #n "," #f "]\n"

/* With biases and limits. */
#define BIASED_EXPERTS(b, t, n, f, e, k, how)                                                      \
    "input %x : T[" #b "," #t "," #n "]\n"                                                         \
    "input %dy : T[" #b "," #t "," #n "]\n"                                                        \
    "input %weights : float32[" #b "," #t "," #k "]\n"                                             \
    "input %choices : int32[" #b "," #t "," #k "]\n"                                               \
    "param %gate : T[" #e "," #f "," #n "]\n"                                                      \
    "param %up : T[" #e "," #f "," #n "]\n"                                                        \
    "param %down : T[" #e "," #n "," #f "]\n"                                                      \
    "param %gb : T[" #e "," #f "]\n"                                                               \
    "param %ub : T[" #e "," #f "]\n"                                                               \
    "F - %y = experts(%x, %weights, %choices, %gate, %up, %down, %gb, %ub) {" how "} : T[" #b      \
    "," #t "," #n "]\n"                                                                            \
    "I - %dx, %dweights = experts_dx(%dy, %x, %weights, %choices, %gate, %up, %down, %gb, %ub) "   \
    "{" how "} : T[" #b "," #t "," #n "], float32[" #b "," #t "," #k "]\n"                         \
    "W - %dgate, %dup, %ddown, %dgb, %dub = experts_dw(%dy, %x, %weights, %choices, %gate, %up, "  \
    "%down, %gb, %ub) {" how "} : float32![" #e "," #f "," #n "], float32![" #e "," #f "," #n      \
    "], float32![" #e "," #n "," #f "], float32![" #e "," #f "], float32![" #e "," #f "]\n"        \
    "W - %tgate, %tup, %tdown, %tgb, %tub = experts_dw(%dy, %x, %weights, %choices, %gate, %up, "  \
    "%down, %gb, %ub) {" how "} : T[" #e "," #f "," #n "], T[" #e "," #f "," #n "], T[" #e "," #n  \
    "," #f "], T[" #e "," #f "], T[" #e "," #f "]\n"                                               \
    "I - %ax, %aweights, %agate, %aup, %adown, %agb, %aub = experts_grad(%dy, %x, %weights, "      \
    "%choices, %gate, %up, %down, %gb, %ub) {" how "} : T[" #b "," #t "," #n "], float32[" #b      \
    "," #t "," #k "], float32![" #e "," #f "," #n "], float32![" #e "," #f "," #n                  \
    "], float32![" #e "," #n "," #f "], float32![" #e "," #f "], float32![" #e "," #f "]\n"

#define FLOAT8_EXPERTS_OF(ids, b, t, n, f, e, k, how)                                              \
    "input %x : T[" #b "," #t "," #n "]\n"                                                         \
    "input %dy : T[" #b "," #t "," #n "]\n"                                                        \
    "input %weights : float32[" #b "," #t "," #k "]\n"                                             \
    "input %" ids " : int32[" #b "," #t "," #k "]\n"                                               \
    "param %gate : T[" #e "," #f "," #n "]\n"                                                      \
    "param %up : T[" #e "," #f "," #n "]\n"                                                        \
    "param %down : T[" #e "," #n "," #f "]\n"                                                      \
    "F - %y = float8.experts(%x, %weights, %" ids ", %gate, %up, %down) {" how "} : T[" #b "," #t  \
    "," #n "]\n"                                                                                   \
    "I - %dx, %dweights = float8.experts_dx(%dy, %x, %weights, %" ids ", %gate, %up, %down) {" how \
    "} : T[" #b "," #t "," #n "], float32[" #b "," #t "," #k "]\n"                                 \
    "W - %dgate, %dup, %ddown = float8.experts_dw(%dy, %x, %weights, %" ids                        \
    ", %gate, %up, %down) "                                                                        \
    "{" how "} : float32![" #e "," #f "," #n "], float32![" #e "," #f "," #n "], float32![" #e     \
    "," #n "," #f "]\n"                                                                            \
    "I - %dx2, %dweights2, %dgate2, %dup2, %ddown2 = float8.experts_grad(%dy, %x, %weights, "      \
    "%" ids ", %gate, %up, %down) {" how "} : T[" #b "," #t "," #n "], float32[" #b "," #t "," #k  \
    "], float32![" #e "," #f "," #n "], float32![" #e "," #f "," #n "], float32![" #e "," #n       \
    "," #f "]\n"
#define FLOAT8_EXPERTS(...) FLOAT8_EXPERTS_OF("ids", __VA_ARGS__)

#define BIASED_FLOAT8_EXPERTS(b, t, n, f, e, k, how)                                               \
    "input %x : T[" #b "," #t "," #n "]\n"                                                         \
    "input %dy : T[" #b "," #t "," #n "]\n"                                                        \
    "input %weights : float32[" #b "," #t "," #k "]\n"                                             \
    "input %choices : int32[" #b "," #t "," #k "]\n"                                               \
    "param %gate : T[" #e "," #f "," #n "]\n"                                                      \
    "param %up : T[" #e "," #f "," #n "]\n"                                                        \
    "param %down : T[" #e "," #n "," #f "]\n"                                                      \
    "param %gb : T[" #e "," #f "]\n"                                                               \
    "param %ub : T[" #e "," #f "]\n"                                                               \
    "F - %y = float8.experts(%x, %weights, %choices, %gate, %up, %down, %gb, %ub) {" how           \
    "} : T[" #b "," #t "," #n "]\n"                                                                \
    "W - %dgate, %dup, %ddown, %dgb, %dub = float8.experts_dw(%dy, %x, %weights, %choices, "       \
    "%gate, "                                                                                      \
    "%up, %down, %gb, %ub) {" how "} : T[" #e "," #f "," #n "], T[" #e "," #f "," #n "], T[" #e    \
    "," #n "," #f "], T[" #e "," #f "], T[" #e "," #f "]\n"

#define ROW_CODES(b, t, n, blocks)                                                                 \
    "input %x : T[" #b "," #t "," #n "]\n"                                                         \
    "F - %q, %factor = ep.quantise(%x) : float8_e4m3[" #b "," #t "," #n "], float32[" #b "," #t    \
    "," #blocks "]\n"                                                                              \
    "F - %y = ep.dequantise(%q, %factor) : float32![" #b "," #t "," #n "]\n"

#define EXPERT_BIAS(b, t, n, e, k)                                                                 \
    "input %dy : T[" #b "," #t "," #n "]\n"                                                        \
    "input %weights : float32[" #b "," #t "," #k "]\n"                                             \
    "input %choices : int32[" #b "," #t "," #k "]\n"                                               \
    "param %bias : T[" #e "," #n "]\n"                                                             \
    "F - %y = expert_bias(%weights, %choices, %bias) : T[" #b "," #t "," #n "]\n"                  \
    "I - %dw = expert_bias_dweights(%dy, %choices, %bias) : float32[" #b "," #t "," #k "]\n"       \
    "W - %db = expert_bias_dbias(%dy, %weights, %choices, %bias) : T[" #e "," #n "]\n"             \
    "W - %db32 = expert_bias_dbias(%dy, %weights, %choices, %bias) : float32![" #e "," #n "]\n"

#define CHOICE(b, t, e, k)                                                                         \
    "input %x : T[" #b "," #t "," #e "]\n"                                                         \
    "input %dw : float32[" #b "," #t "," #k "]\n"                                                  \
    "input %ids : int32[" #b "," #t "," #k "]\n"                                                   \
    "F - %load, %total = expert_load(%ids, %x) : float32[" #b "," #e "], float32[" #e "]\n"        \
    "F - %y, %best = top_k(%x) {k=" #k "} : float32[" #b "," #t "," #k "], int32[" #b "," #t       \
    "," #k "]\n"                                                                                   \
    "F - %y2, %best2 = top_k(%x) {k=" #k ", normalised=false, balance=0.5} : float32[" #b "," #t   \
    "," #k "], int32[" #b "," #t "," #k "]\n"                                                      \
    "I - %dx = top_k_grad(%dw, %ids, %x) {k=" #k "} : T[" #b "," #t "," #e "]\n"                   \
    "I - %dx2 = balanced_top_k_grad(%dw, %ids, %x, %load) {k=" #k ", balance=0.5} : T[" #b "," #t  \
    "," #e "]\n"                                                                                   \
    "I - %dx3 = top_k_grad(%dw, %best2, %x) {k=" #k ", normalised=false} : T[" #b "," #t "," #e    \
    "]\n"

/* With a bias and in groups. */
#define BIASED_CHOICE(b, t, e, k, groups)                                                          \
    "input %x : T[" #b "," #t "," #e "]\n"                                                         \
    "input %bias : float32[" #e "]\n"                                                              \
    "input %dw : float32[" #b "," #t "," #k "]\n"                                                  \
    "F - %y, %best = top_k(%x, %bias) {k=" #k ", scores=\"sigmoid\", scale=2.5} : float32[" #b     \
    "," #t "," #k "], int32[" #b "," #t "," #k "]\n"                                               \
    "F - %y2, %best2 = top_k(%x, %bias) {k=" #k ", scores=\"sigmoid\", " groups "} : float32[" #b  \
    "," #t "," #k "], int32[" #b "," #t "," #k "]\n"                                               \
    "F - %y3, %best3 = top_k(%x) {k=" #k ", normalised=false, scale=0.5, " groups                  \
    "} : float32[" #b "," #t "," #k "], int32[" #b "," #t "," #k "]\n"                             \
    "F - %y4, %best4 = top_k(%x) {k=" #k ", scores=\"sigmoid\"} : float32[" #b "," #t "," #k       \
    "], int32[" #b "," #t "," #k "]\n"                                                             \
    "F - %y5, %best5 = top_k(%x, %bias) {k=" #k "} : float32[" #b "," #t "," #k "], int32[" #b     \
    "," #t "," #k "]\n"                                                                            \
    "I - %dx = top_k_grad(%dw, %best2, %x) {k=" #k ", scores=\"sigmoid\", scale=2.5} : T[" #b      \
    "," #t "," #e "]\n"                                                                            \
    "I - %dx2 = top_k_grad(%dw, %best3, %x) {k=" #k                                                \
    ", normalised=false, scale=0.5} : float32![" #b "," #t "," #e "]\n"                            \
    "I - %dx3 = top_k_grad(%dw, %best5, %x) {k=" #k ", scale=0.5} : T[" #b "," #t "," #e "]\n"     \
    "W - %dbias = expert_excess(%best2, %x) : float32[" #e "]\n"

#define LAYER_NORM(b, t, k)                                                                        \
    "input %x : T[" #b "," #t "," #k "]\n"                                                         \
    "input %far : T[" #b "," #t "," #k "]\n"                                                       \
    "input %dy : T[" #b "," #t "," #k "]\n"                                                        \
    "param %w : T[" #k "]\n"                                                                       \
    "param %row : T[" #k "]\n"                                                                     \
    "F - %y, %mean, %rstd = layer_norm(%x, %w, %row) {eps=1e-5} : T[" #b "," #t "," #k             \
    "], float32[" #b "," #t "], float32[" #b "," #t "]\n"                                          \
    "F - %y2, %mean2, %rstd2 = layer_norm(%x, %w) {eps=1e-5} : T[" #b "," #t "," #k                \
    "], float32[" #b "," #t "], float32[" #b "," #t "]\n"                                          \
    "F - %y3, %mean3, %rstd3 = layer_norm(%far, %w) {eps=1e-5} : T[" #b "," #t "," #k              \
    "], float32[" #b "," #t "], float32[" #b "," #t "]\n"                                          \
    "I - %dx, %dw, %db = layer_norm_grad(%dy, %x, %w, %mean, %rstd) : T[" #b "," #t "," #k         \
    "], float32![" #k "], T[" #k "]\n"

/* Queries and keys that are shards of sequences, as `said` says; results of two sets of keys. */
#define ATTENTION_SHARDS(b, t, s, h, g, d, e, said)                                                \
    "input %q : T[" #b "," #t "," #h "," #d "]\n"                                                  \
    "input %k : T[" #b "," #s "," #g "," #d "]\n"                                                  \
    "input %others : T[" #b "," #s "," #g "," #d "]\n"                                             \
    "input %v : T[" #b "," #s "," #g "," #e "]\n"                                                  \
    "input %do : T[" #b "," #t "," #h "," #e "]\n"                                                 \
    "input %documents : int32[" #b "," #t "]\n"                                                    \
    "input %k_documents : int32[" #b "," #s "]\n"                                                  \
    "input %positions : int32[" #b "," #t "]\n"                                                    \
    "input %k_positions : int32[" #b "," #s "]\n"                                                  \
    "input %outer : int32[" #b "," #t "]\n"                                                        \
    "input %inner : int32[" #b "," #s "]\n"                                                        \
    "F - %o, %lse = attention(%q, %k, %v, " said ") : T[" #b "," #t "," #h "," #e "], float32[" #b \
    "," #h "," #t "]\n"                                                                            \
    "F - %o1, %lse1 = attention(%q, %k, %v, " said ") : float32![" #b "," #t "," #h "," #e         \
    "], float32[" #b "," #h "," #t "]\n"                                                           \
    "F - %o2, %lse2 = attention(%q, %others, %v, " said ") : float32![" #b "," #t "," #h "," #e    \
    "], float32[" #b "," #h "," #t "]\n"                                                           \
    "F - %m, %mlse = attention_merge(%o1, %lse1, %o2, %lse2) : T![" #b "," #t "," #h "," #e        \
    "], float32[" #b "," #h "," #t "]\n"                                                           \
    "F - %w, %wlse = attention_merge(%o, %lse, %m, %mlse) : float32![" #b "," #t "," #h "," #e     \
    "], float32[" #b "," #h "," #t "]\n"                                                           \
    "I - %dq, %dk, %dv = attention_grad(%do, %q, %k, %v, %o, %lse, " said ") : T[" #b "," #t       \
    "," #h "," #d "], float32![" #b "," #s "," #g "," #d "], float32![" #b "," #s "," #g "," #e    \
    "]\n"

/* Rows of o times what the softmax leaves them beside a sink, and its gradient. */
#define SINK(b, t, h, e)                                                                           \
    "input %o : T[" #b "," #t "," #h "," #e "]\n"                                                  \
    "input %dy : T[" #b "," #t "," #h "," #e "]\n"                                                 \
    "input %lse : float32[" #b "," #h "," #t "]\n"                                                 \
    "param %sink : T[" #h "]\n"                                                                    \
    "F - %y = attention_sink(%o, %lse, %sink) : T[" #b "," #t "," #h "," #e "]\n"                  \
    "I - %do, %dsink = attention_sink_grad(%dy, %y, %lse, %sink) : T[" #b "," #t "," #h "," #e     \
    "], float32![" #h "]\n"                                                                        \
    "I - %do2, %dsink2 = attention_sink_grad(%dy, %y, %lse, %sink) : T[" #b "," #t "," #h "," #e   \
    "], T[" #h "]\n"

#define ROPE(b, t, h, d, positions, attrs)                                                         \
    "input %x : T[" #b "," #t "," #h "," #d "]\n"                                                  \
    "input %positions : int32[" #b "," #t "]\n"                                                    \
    "F - %y = rope(%x, " positions ") {" attrs "} : T[" #b "," #t "," #h "," #d "]\n"

#define TEMPER(b, t, h, d, positions)                                                              \
    "input %x : T[" #b "," #t "," #h "," #d "]\n"                                                  \
    "input %positions : int32[" #b "," #t "]\n"                                                    \
    "F - %y = temper(%x, " positions ") {scale=0.3, every=7} : T[" #b "," #t "," #h "," #d "]\n"

#define CHUNKS(b, t)                                                                               \
    "input %tokens : int32[" #b "," #t "]\n"                                                       \
    "input %positions : int32[" #b "," #t "]\n"                                                    \
    "input %documents : int32[" #b "," #t "]\n"                                                    \
    "F - %y = document_chunks(%tokens) {tokens=5} : int32[" #b "," #t "]\n"                        \
    "F - %y2 = document_chunks(%tokens, %positions, %documents) {tokens=3, most=9} : int32[" #b    \
    "," #t "]\n"

/* x[w0 + w1 + w2] in parts, and back, one of them absent; as keys and values, n of each head in kv,
   and r that all share, and back. */
#define SPLIT(b, t, n, w0, w1, w2)                                                                 \
    "input %x : T[" #b "," #t "," #n "]\n"                                                         \
    "F - %p, %q, %s = split(%x) {widths=\"" #w0 "," #w1 "," #w2 "\"} : T[" #b "," #t "," #w0       \
    "], T[" #b "," #t "," #w1 "], T[" #b "," #t "," #w2 "]\n"                                      \
    "I - %dx = split_grad(%p, %q, %s) {widths=\"" #w0 "," #w1 "," #w2 "\"} : T[" #b "," #t "," #n  \
    "]\n"                                                                                          \
    "I - %dx2 = split_grad(_, %q, %s) {widths=\"" #w0 "," #w1 "," #w2 "\"} : T[" #b "," #t "," #n  \
    "]\n"

#define LATENT(b, t, h, keys, values, both, shared, whole)                                         \
    "input %kv : T[" #b "," #t "," #h "," #both "]\n"                                              \
    "input %shared : T[" #b "," #t "," #shared "]\n"                                               \
    "input %dk : T[" #b "," #t "," #h "," #whole "]\n"                                             \
    "input %dv : T[" #b "," #t "," #h "," #values "]\n"                                            \
    "F - %k, %v = expand_latent(%kv, %shared) {keys=" #keys "} : T[" #b "," #t "," #h "," #whole   \
    "], T[" #b "," #t "," #h "," #values "]\n"                                                     \
    "I - %dkv, %dshared = expand_latent_grad(%dk, %dv) {keys=" #keys ", values=" #values           \
    ", shared=" #shared "} : T[" #b "," #t "," #h "," #both "], T[" #b "," #t "," #shared "]\n"    \
    "I - %dkv2, %dshared2 = expand_latent_grad(%dk, _) {keys=" #keys ", values=" #values           \
    ", shared=" #shared "} : T[" #b "," #t "," #h "," #both "], T[" #b "," #t "," #shared "]\n"    \
    "I - %dkv3, %dshared3 = expand_latent_grad(_, %dv) {keys=" #keys ", values=" #values           \
    ", shared=" #shared "} : T[" #b "," #t "," #h "," #both "], T[" #b "," #t "," #shared "]\n"

#define CONV(b, t, c, k, ids, bias)                                                                \
    "input %x : T[" #b "," #t "," #c "]\n"                                                         \
    "param %w : T[" #c "," #k "]\n"                                                                \
    "param %bias : T[" #c "]\n"                                                                    \
    "input %documents : int32[" #b "," #t "]\n"                                                    \
    "input %dy : T[" #b "," #t "," #c "]\n"                                                        \
    "F - %y = causal_conv(%x, %w, " bias ", " ids ") : T[" #b "," #t "," #c "]\n"                  \
    "I - %dx, %dw, %dbias = causal_conv_grad(%dy, %x, %w, " ids ") : T[" #b "," #t "," #c          \
    "], T[" #c "," #k "], T[" #c "]\n"

#define SCAN(b, t, h, p, g, n, ids, limits)                                                        \
    "input %x : T[" #b "," #t "," #h "," #p "]\n"                                                  \
    "input %dt : T[" #b "," #t "," #h "]\n"                                                        \
    "param %a : T[" #h "]\n"                                                                       \
    "input %b : T[" #b "," #t "," #g "," #n "]\n"                                                  \
    "input %c : T[" #b "," #t "," #g "," #n "]\n"                                                  \
    "param %d : T[" #h "]\n"                                                                       \
    "param %bias : T[" #h "]\n"                                                                    \
    "input %documents : int32[" #b "," #t "]\n"                                                    \
    "input %dy : T[" #b "," #t "," #h "," #p "]\n"                                                 \
    "F - %y = state_scan(%x, %dt, %a, %b, %c, %d, %bias, " ids ") {" limits "} : T[" #b "," #t     \
    "," #h "," #p "]\n"                                                                            \
    "I - %dx, %ddt, %da, %db, %dc, %dd, %dbias = state_scan_grad(%dy, %x, %dt, %a, %b, %c, %d, "   \
    "%bias, " ids ") {" limits "} : T[" #b "," #t "," #h "," #p "], T[" #b "," #t "," #h           \
    "], T[" #h "], T[" #b "," #t "," #g "," #n "], T[" #b "," #t "," #g "," #n "], T[" #h          \
    "], T[" #h "]\n"

#define DELTA(b, t, h, g, k, v, ids)                                                               \
    "input %q : T[" #b "," #t "," #g "," #k "]\n"                                                  \
    "input %k : T[" #b "," #t "," #g "," #k "]\n"                                                  \
    "input %v : T[" #b "," #t "," #h "," #v "]\n"                                                  \
    "input %gate : float32[" #b "," #t "," #h "]\n"                                                \
    "input %beta : float32[" #b "," #t "," #h "]\n"                                                \
    "input %documents : int32[" #b "," #t "]\n"                                                    \
    "input %do : T[" #b "," #t "," #h "," #v "]\n"                                                 \
    "F - %near = scale(%gate) {factor=0.1} : float32[" #b "," #t "," #h "]\n"                      \
    "F - %little = scale(%beta) {factor=0.1} : float32[" #b "," #t "," #h "]\n"                    \
    "F - %o = gated_delta(%q, %k, %v, %near, %little, " ids ") : T[" #b "," #t "," #h "," #v "]\n" \
    "I - %dq, %dk, %dv, %dgate, %dbeta = gated_delta_grad(%do, %q, %k, %v, %near, %little, " ids   \
    ") : T[" #b "," #t "," #g "," #k "], T[" #b "," #t "," #g "," #k "], T[" #b "," #t "," #h      \
    "," #v "], float32[" #b "," #t "," #h "], float32[" #b "," #t "," #h "]\n"

/* Parts of three sequences. */
#define CONV_PART(t, c, k, rows)                                                                   \
    "input %x : T[3," #t "," #c "]\n"                                                              \
    "param %w : T[" #c "," #k "]\n"                                                                \
    "param %bias : T[" #c "]\n"                                                                    \
    "state %before : T[3," #rows "," #c "]\n"                                                      \
    "input %fed : int32[3," #t "]\n"                                                               \
    "F - %y = causal_conv(%x, %w, %bias, _, %before, %fed) : T[3," #t "," #c "]\n"

#define SCAN_PART(t, h, p, g, n)                                                                   \
    "input %x : T[3," #t "," #h "," #p "]\n"                                                       \
    "input %dt : T[3," #t "," #h "]\n"                                                             \
    "param %a : T[" #h "]\n"                                                                       \
    "input %b : T[3," #t "," #g "," #n "]\n"                                                       \
    "input %c : T[3," #t "," #g "," #n "]\n"                                                       \
    "param %d : T[" #h "]\n"                                                                       \
    "param %bias : T[" #h "]\n"                                                                    \
    "state %before : float32[3," #h "," #p "," #n "]\n"                                            \
    "input %fed : int32[3," #t "]\n"                                                               \
    "F - %y = state_scan(%x, %dt, %a, %b, %c, %d, %bias, _, %before, %fed) : T[3," #t "," #h       \
    "," #p "]\n"

#define DELTA_PART(t, h, g, k, v)                                                                  \
    "input %q : T[3," #t "," #g "," #k "]\n"                                                       \
    "input %k : T[3," #t "," #g "," #k "]\n"                                                       \
    "input %v : T[3," #t "," #h "," #v "]\n"                                                       \
    "input %gate : float32[3," #t "," #h "]\n"                                                     \
    "input %beta : float32[3," #t "," #h "]\n"                                                     \
    "state %before : float32[3," #h "," #k "," #v "]\n"                                            \
    "input %fed : int32[3," #t "]\n"                                                               \
    "F - %near = scale(%gate) {factor=0.1} : float32[3," #t "," #h "]\n"                           \
    "F - %little = scale(%beta) {factor=0.1} : float32[3," #t "," #h "]\n"                         \
    "F - %o = gated_delta(%q, %k, %v, %near, %little, _, %before, %fed) : T[3," #t "," #h "," #v   \
    "]\n"

/* The same in s segments, each with a state before and a gradient of the one behind. */
#define CONV_SEGMENTS(b, s, t, c, k, before, ids)                                                  \
    "input %x : T[" #b "," #s "," #t "," #c "]\n"                                                  \
    "param %w : T[" #c "," #k "]\n"                                                                \
    "input %documents : int32[" #b "," #s "," #t "]\n"                                             \
    "input %state : T[" #b "," #s ",1," #before "," #c "]\n"                                       \
    "input %after : float32[" #b "," #s ",1," #before "," #c "]\n"                                 \
    "input %dy : T[" #b "," #s "," #t "," #c "]\n"                                                 \
    "F - %y = causal_conv(%x, %w, _, " ids ", _, _, %state) : T[" #b "," #s "," #t "," #c "]\n"    \
    "F - %tail = causal_conv_carry(%x, " ids ") {tokens=" #before "} : T[" #b "," #s ",1," #before \
    "," #c "]\n"                                                                                   \
    "I - %dx, %dw, %dbias = causal_conv_grad(%dy, %x, %w, " ids ", %state, %after) : T[" #b "," #s \
    "," #t "," #c "], T[" #c "," #k "], T[" #c "]\n"                                               \
    "I - %dstate = causal_conv_dstate(%dy, %w, " ids ") : float32[" #b "," #s ",1," #before "," #c \
    "]\n"

#define SCAN_SEGMENTS(b, s, t, h, p, g, n, ids)                                                    \
    "input %x : T[" #b "," #s "," #t "," #h "," #p "]\n"                                           \
    "input %dt : T[" #b "," #s "," #t "," #h "]\n"                                                 \
    "param %a : T[" #h "]\n"                                                                       \
    "input %b : T[" #b "," #s "," #t "," #g "," #n "]\n"                                           \
    "input %c : T[" #b "," #s "," #t "," #g "," #n "]\n"                                           \
    "param %d : T[" #h "]\n"                                                                       \
    "param %bias : T[" #h "]\n"                                                                    \
    "input %documents : int32[" #b "," #s "," #t "]\n"                                             \
    "input %state : float32[" #b "," #s "," #h "," #p "," #n "]\n"                                 \
    "input %after : float32[" #b "," #s "," #h "," #p "," #n "]\n"                                 \
    "input %dy : T[" #b "," #s "," #t "," #h "," #p "]\n"                                          \
    "F - %y = state_scan(%x, %dt, %a, %b, %c, %d, %bias, " ids ", _, _, %state) : T[" #b "," #s    \
    "," #t "," #h "," #p "]\n"                                                                     \
    "F - %keeps, %gain = state_scan_carry(%x, %dt, %a, %b, %bias, " ids ") : float32[" #b "," #s   \
    "," #h ",1,1], float32[" #b "," #s "," #h "," #p "," #n "]\n"                                  \
    "I - %dx, %ddt, %da, %db, %dc, %dd, %dbias = state_scan_grad(%dy, %x, %dt, %a, %b, %c, %d, "   \
    "%bias, " ids ", %state, %after) : T[" #b "," #s "," #t "," #h "," #p "], T[" #b "," #s "," #t \
    "," #h "], T[" #h "], T[" #b "," #s "," #t "," #g "," #n "], T[" #b "," #s "," #t "," #g       \
    "," #n "], T[" #h "], T[" #h "]\n"                                                             \
    "I - %dstate = state_scan_dstate(%dy, %dt, %a, %c, %bias, " ids ") : float32[" #b "," #s       \
    "," #h "," #p "," #n "]\n"

#define DELTA_SEGMENTS(b, s, t, h, g, k, v, ids)                                                   \
    "input %q : T[" #b "," #s "," #t "," #g "," #k "]\n"                                           \
    "input %k : T[" #b "," #s "," #t "," #g "," #k "]\n"                                           \
    "input %v : T[" #b "," #s "," #t "," #h "," #v "]\n"                                           \
    "input %gate : float32[" #b "," #s "," #t "," #h "]\n"                                         \
    "input %beta : float32[" #b "," #s "," #t "," #h "]\n"                                         \
    "input %documents : int32[" #b "," #s "," #t "]\n"                                             \
    "input %state : float32[" #b "," #s "," #h "," #k "," #v "]\n"                                 \
    "input %after : float32[" #b "," #s "," #h "," #k "," #v "]\n"                                 \
    "input %do : T[" #b "," #s "," #t "," #h "," #v "]\n"                                          \
    "F - %near = scale(%gate) {factor=0.1} : float32[" #b "," #s "," #t "," #h "]\n"               \
    "F - %little = scale(%beta) {factor=0.1} : float32[" #b "," #s "," #t "," #h "]\n"             \
    "F - %o = gated_delta(%q, %k, %v, %near, %little, " ids ", _, _, %state) : T[" #b "," #s       \
    "," #t "," #h "," #v "]\n"                                                                     \
    "F - %keeps, %gain = gated_delta_carry(%k, %v, %near, %little, " ids ") : float32[" #b "," #s  \
    "," #h "," #k "," #k "], float32[" #b "," #s "," #h "," #k "," #v "]\n"                        \
    "I - %dq, %dk, %dv, %dgate, %dbeta = gated_delta_grad(%do, %q, %k, %v, %near, %little, " ids   \
    ", %state, %after) : T[" #b "," #s "," #t "," #g "," #k "], T[" #b "," #s "," #t "," #g "," #k \
    "], T[" #b "," #s "," #t "," #h "," #v "], float32[" #b "," #s "," #t "," #h "], float32[" #b  \
    "," #s "," #t "," #h "]\n"                                                                     \
    "I - %dstate = gated_delta_dstate(%do, %q, %k, %near, %little, " ids ") : float32[" #b "," #s  \
    "," #h "," #k "," #v "]\n"

#define FOLD(b, s, h, k, j, v, ids)                                                                \
    "input %keeps : T[" #b "," #s "," #h "," #j "," #j "]\n"                                       \
    "input %gain : T[" #b "," #s "," #h "," #k "," #v "]\n"                                        \
    "input %documents : int32[" #b "," #s ",6]\n"                                                  \
    "F - %ends = document_ends(%documents) : int32[" #b "," #s ",2]\n"                             \
    "F - %few = scale(%keeps) {factor=0.3} : T[" #b "," #s "," #h "," #j "," #j "]\n"              \
    "F - %state = fold_states(%few, %gain, " ids ") : T[" #b "," #s "," #h "," #k "," #v "]\n"     \
    "F - %tail = fold_states(_, %gain, " ids ") : T[" #b "," #s "," #h "," #k "," #v "]\n"         \
    "I - %after = fold_states(%few, %gain, " ids ") {back=true} : T[" #b "," #s "," #h "," #k      \
    "," #v "]\n"

#define GATES(b, t, h)                                                                             \
    "input %x : T[" #b "," #t "," #h "]\n"                                                         \
    "param %a : T[" #h "]\n"                                                                       \
    "param %bias : T[" #h "]\n"                                                                    \
    "input %dy : float32[" #b "," #t "," #h "]\n"                                                  \
    "F - %s = sigmoid(%x) : float32[" #b "," #t "," #h "]\n"                                       \
    "I - %ds = sigmoid_grad(%dy, %s, %x) : T[" #b "," #t "," #h "]\n"                              \
    "F - %y = decay(%x, %a, %bias) : float32[" #b "," #t "," #h "]\n"                              \
    "I - %dx, %da, %dbias = decay_grad(%dy, %x, %a, %bias) : T[" #b "," #t "," #h "], T[" #h       \
    "], T[" #h "]\n"

#define COPIES(b, t, h, g, d)                                                                      \
    "input %x : T[" #b "," #t "," #g "," #d "]\n"                                                  \
    "F - %y = copy_heads(%x) {heads=" #h "} : T[" #b "," #t "," #h "," #d "]\n"                    \
    "I - %dx = copy_heads_grad(%y) {groups=" #g "} : T[" #b "," #t "," #g "," #d "]\n"

#define EMBEDDING(b, t, v, n)                                                                      \
    "input %tokens : int32[" #b "," #t "]\n"                                                       \
    "param %table : T[" #v "," #n "]\n"                                                            \
    "input %dy : T[" #b "," #t "," #n "]\n"                                                        \
    "F - %y = embedding(%tokens, %table) : T[" #b "," #t "," #n "]\n"                              \
    "W - %dtable = embedding_grad(%dy, %tokens) {rows=" #v "} : float32![" #v "," #n "]\n"         \
    "W - %dtable2 = embedding_grad(%dy, %tokens) {rows=" #v "} : T[" #v "," #n "]\n"               \
    "W - %padded = embedding_grad(%dy, %tokens) {rows=" #v ", padding=1} : float32![" #v "," #n    \
    "]\n"

#define ADAMW(n0, n1, clip)                                                                        \
    "scalar %lr : float64[]\n"                                                                     \
    "scalar %step : float64[]\n"                                                                   \
    "scalar %" clip " : float32[]\n"                                                               \
    "param %p0 : T[" #n0 "]\n"                                                                     \
    "param %p1 : float32[" #n1 ",3]\n"                                                             \
    "state %g0 : T[" #n0 "]\n"                                                                     \
    "state %g1 : T[" #n1 ",3]\n"                                                                   \
    "state %m0 : T[" #n0 "]\n"                                                                     \
    "state %m1 : float32[" #n1 ",3]\n"                                                             \
    "state %variance0 : T[" #n0 "]\n"                                                              \
    "state %variance1 : float32[" #n1 ",3]\n"                                                      \
    "post - adamw(%lr, %step, %" clip ", %p0, %g0, %m0, %variance0, %p1, %g1, %m1, %variance1) "   \
    "{weight_decay=0.5, lr_factor=0.25}\n"

/* Packed weights that no step changes: a training has a grad_norm. */
#define FROZEN(t, k, n)                                                                            \
    "input %x : T[2," #t "," #k                                                                    \
    "]\n" PARAMETER("w", n, k) "F - %y = linear(%x, %w) : T[2," #t "," #n "]\n"                    \
                               "I - %dx = linear_dx(%y, %w) : T[2," #t "," #k "]\n"                \
                               "post - %grad_norm = squared_norm(%dx) : float64[]\n"

/* The first parameter has no copy. */
#define ADAMW_COPIES(n0, n1, clip)                                                                 \
    "scalar %lr : float64[]\n"                                                                     \
    "scalar %step : float64[]\n"                                                                   \
    "scalar %" clip " : float32[]\n"                                                               \
    "param %p0 : float32[" #n0 "]\n"                                                               \
    "param %p1 : float32[" #n1 ",3]\n"                                                             \
    "state %g0 : T[" #n0 "]\n"                                                                     \
    "state %g1 : T[" #n1 ",3]\n"                                                                   \
    "state %m0 : T[" #n0 "]\n"                                                                     \
    "state %m1 : float32[" #n1 ",3]\n"                                                             \
    "state %variance0 : T[" #n0 "]\n"                                                              \
    "state %variance1 : float32[" #n1 ",3]\n"                                                      \
    "state %copy1 : bfloat16![" #n1 ",3]\n"                                                        \
    "init - cast_into(%copy1, %p1)\n"                                                              \
    "post - adamw.copies(%lr, %step, %" clip ", %p0, %g0, %m0, %variance0, _, %p1, %g1, "          \
    "%m1, %variance1, %copy1) {weight_decay=0.5, lr_factor=0.25}\n"

#define ADAMW_FLOAT8(n0, columns, blocks, clip)                                                    \
    "scalar %lr : float64[]\n"                                                                     \
    "scalar %step : float64[]\n"                                                                   \
    "scalar %" clip " : float32[]\n"                                                               \
    "param %p : T[" #n0 "," #columns "]\n"                                                         \
    "state %g : T[" #n0 "," #columns "]\n"                                                         \
    "state %m : float32[" #n0 "," #columns "]\n"                                                   \
    "state %m_scale : float32[" #n0 "," #blocks "]\n"                                              \
    "state %variance : float32[" #n0 "," #columns "]\n"                                            \
    "state %v_scale : float32[" #n0 "," #blocks "]\n"                                              \
    "post - adamw.float8(%lr, %step, %" clip ", %p, %g, %m, %m_scale, %variance, %v_scale) "       \
    "{weight_decay=0.5, lr_factor=0.25}\n"

#define AVERAGE(n, k)                                                                              \
    "scalar %step : float64[]\n"                                                                   \
    "param %p : T[" #n "," #k "]\n"                                                                \
    "state %average : float32[" #n "," #k "]\n"                                                    \
    "post - ema(%step, %p, %average) {decay=0.9}\n"

#define SIGN_STEP(clip)                                                                            \
    "scalar %" clip " : float32[]\n"                                                               \
    "param %p : float32[37]\n"                                                                     \
    "state %g : float32[37]\n"                                                                     \
    "param %p2 : float32[3,256]\n"                                                                 \
    "state %g2 : float32[3,256]\n"                                                                 \
    "post - sign_step(%" clip ", %p, %g, %p2, %g2) {rate=0.001}\n"

#define MUON(s, n, k, clip, products)                                                              \
    "scalar %lr : float64[]\n"                                                                     \
    "scalar %" clip " : float32[]\n"                                                               \
    "param %p : float32[" #s "," #n "," #k "]\n"                                                   \
    "state %g : T[" #s "," #n "," #k "]\n"                                                         \
    "state %m : T[" #s "," #n "," #k "]\n"                                                         \
    "post - %u = muon.momentum(%" clip ", %g, %m) {momentum=0.9} : T[" #s "," #n "," #k "]\n"      \
    "post - %o = muon.orthogonal(%u) {products=" products "} : T[" #s "," #n "," #k "]\n"          \
    "post - muon.update(%lr, %" clip ", %p, %o) {weight_decay=0.1, scale=3}\n"

/* All rows in two rounds, as devices with memory of their own send them. */
#define ROUTE(b, t, n, k, experts, ranks, capacity)                                                \
    "input %x : T[" #b "," #t "," #n "]\n"                                                         \
    "input %ids : int32[" #b "," #t "," #k "]\n"                                                   \
    "F - %slot, %most = ep.route(%ids) {experts=" #experts ", ranks=" #ranks "} : int32[" #b       \
    "," #t "," #ranks "], int32[1]\n"                                                              \
    "F - %r0 = ep.pack(%most, %slot, %x) {agreed=false, ranks=" #ranks ", capacity=" #capacity     \
    "} : T[1," #ranks "," #capacity "," #n "]\n"                                                   \
    "F - %r1 = ep.pack(%most, %slot, %x) {agreed=false, round=1, ranks=" #ranks                    \
    ", capacity=" #capacity "} : T[1," #ranks "," #capacity "," #n "]\n"                           \
    "F - %i1 = ep.pack(%most, %slot, %ids) {agreed=false, round=1, ranks=" #ranks                  \
    ", capacity=" #capacity "} : int32[1," #ranks "," #capacity "," #k "]\n"                       \
    "F - %s0 = ep.sum(%most, %slot, %r0) {agreed=false, capacity=" #capacity "} : float32![" #b    \
    "," #t "," #n "]\n"                                                                            \
    "F - %s1 = ep.sum(%most, %slot, %r1, %s0) {agreed=false, round=1, capacity=" #capacity         \
    "} : T[" #b "," #t "," #n "]\n"

#define FLOAT8(b, t, k, n)                                                                         \
    "input %x : T[" #b "," #t "," #k "]\n"                                                         \
    "input %dy : T[" #b "," #t "," #n "]\n"                                                        \
    "param %w : T[" #n "," #k "]\n"                                                                \
    "F - %xq.m = float8_amax(%x) {grid=\"1,1,1\"} : float32[1,1,1]\n"                              \
    "F - %xq.s = float8_scale(%xq.m) {largest=448, rule=\"exact\"} : float32[1,1,1]\n"             \
    "F - %xq = float8_quantise(%x, %xq.s) {dtype=\"float8_e4m3\"} : float8_e4m3[" #b "," #t "," #k \
    "]\n"                                                                                          \
    "F - %xr.m = float8_amax(%x) {grid=\"" #b "," #t ",1\"} : float32[" #b "," #t ",1]\n"          \
    "F - %xr.s = float8_scale(%xr.m) {largest=448, rule=\"power_of_two\"} : float32[" #b "," #t    \
    ",1]\n"                                                                                        \
    "F - %xr = float8_quantise(%x, %xr.s) {dtype=\"float8_e4m3\"} : float8_e4m3[" #b "," #t "," #k \
    "]\n"                                                                                          \
    "F - %xc.m = float8_amax(%x) {grid=\"1,1," #k "\"} : float32[1,1," #k "]\n"                    \
    "F - %xc.s = float8_scale(%xc.m) {largest=448, rule=\"exact\"} : float32[1,1," #k "]\n"        \
    "F - %xc = float8_quantise(%x, %xc.s) {dtype=\"float8_e4m3\"} : float8_e4m3[" #b "," #t "," #k \
    "]\n"                                                                                          \
    "F - %wq.m = float8_amax(%w) {grid=\"1,1\"} : float32[1,1]\n"                                  \
    "F - %wq.s = float8_scale(%wq.m) {largest=448, rule=\"power_of_two\"} : float32[1,1]\n"        \
    "F - %wq = float8_quantise(%w, %wq.s) {dtype=\"float8_e4m3\"} : float8_e4m3[" #n "," #k "]\n"  \
    "F - %wr.m = float8_amax(%w) {grid=\"" #n ",1\"} : float32[" #n ",1]\n"                        \
    "F - %wr.s = float8_scale(%wr.m) {largest=448, rule=\"exact\"} : float32[" #n ",1]\n"          \
    "F - %wr = float8_quantise(%w, %wr.s) {dtype=\"float8_e4m3\"} : float8_e4m3[" #n "," #k "]\n"  \
    "F - %wc.m = float8_amax(%w) {grid=\"1," #k "\"} : float32[1," #k "]\n"                        \
    "F - %wc.s = float8_scale(%wc.m) {largest=448, rule=\"exact\"} : float32[1," #k "]\n"          \
    "F - %wc = float8_quantise(%w, %wc.s) {dtype=\"float8_e4m3\"} : float8_e4m3[" #n "," #k "]\n"  \
    "F - %dq.m = float8_amax(%dy) {grid=\"1,1,1\"} : float32[1,1,1]\n"                             \
    "F - %dq.s = float8_scale(%dq.m) {largest=57344, rule=\"exact\"} : float32[1,1,1]\n"           \
    "F - %dq = float8_quantise(%dy, %dq.s) {dtype=\"float8_e5m2\"} : float8_e5m2[" #b "," #t       \
    "," #n "]\n"                                                                                   \
    "F - %dr.m = float8_amax(%dy) {grid=\"" #b "," #t ",1\"} : float32[" #b "," #t ",1]\n"         \
    "F - %dr.s = float8_scale(%dr.m) {largest=448, rule=\"exact\"} : float32[" #b "," #t ",1]\n"   \
    "F - %dr = float8_quantise(%dy, %dr.s) {dtype=\"float8_e4m3\"} : float8_e4m3[" #b "," #t       \
    "," #n "]\n"                                                                                   \
    "F - %dc.m = float8_amax(%dy) {grid=\"1,1," #n "\"} : float32[1,1," #n "]\n"                   \
    "F - %dc.s = float8_scale(%dc.m) {largest=448, rule=\"exact\"} : float32[1,1," #n "]\n"        \
    "F - %dc = float8_quantise(%dy, %dc.s) {dtype=\"float8_e4m3\"} : float8_e4m3[" #b "," #t       \
    "," #n "]\n"                                                                                   \
    "F - %y = linear_float8(%xq, %wq, %xq.s, %wq.s) {fast_accumulation=true} : bfloat16[" #b       \
    "," #t "," #n "]\n"                                                                            \
    "F - %yr = linear_float8(%xr, %wr, %xr.s, %wr.s) : bfloat16[" #b "," #t "," #n "]\n"           \
    "I - %dx = linear_float8_dx(%dq, %wq, %dq.s, %wq.s) {dtype=\"float32\"} : float32[" #b "," #t  \
    "," #k "]\n"                                                                                   \
    "I - %dxr = linear_float8_dx(%dr, %wc, %dr.s, %wc.s) : bfloat16[" #b "," #t "," #k "]\n"       \
    "I - %dxt = linear_float8_dx(%dr, %wq, %dr.s, %wq.s) : bfloat16[" #b "," #t "," #k "]\n"       \
    "W - %dw = linear_float8_dw(%xq, %dq, %xq.s, %dq.s) : float32![" #n "," #k "]\n"               \
    "W - %dwr = linear_float8_dw(%xc, %dc, %xc.s, %dc.s) : bfloat16[" #n "," #k "]\n"

/* Transposed codes, made in four ways, and products that read them. */
#define FLOAT8_TRANSPOSED(b, t, k, n)                                                              \
    "input %x : T[" #b "," #t "," #k "]\n"                                                         \
    "input %dy : T[" #b "," #t "," #n "]\n"                                                        \
    "param %w : T[" #n "," #k "]\n"                                                                \
    "F - %x.s, %x.i = float8_amax_scale(%x) {grid=\"1,1,1\"} : float32[1,1,1], float32[1,1,1]\n"   \
    "F - %xq, %xt = float8_quantise_both(%x, %x.s) : float8_e4m3[" #b "," #t "," #k                \
    "], float8_e4m3[" #k "," #b "," #t "]\n"                                                       \
    "F - %dy.m = float8_amax(%dy) {grid=\"1,1,1\"} : float32[1,1,1]\n"                             \
    "F - %dy.s, %dy.i = float8_scale_both(%dy.m) {largest=57344} : float32[1,1,1], "               \
    "float32[1,1,1]\n"                                                                             \
    "F - %dt = float8_quantise_transposed(%dy, %dy.s) {dtype=\"float8_e5m2\"} : float8_e5m2[" #n   \
    "," #b "," #t "]\n"                                                                            \
    "F - %dyr.m, %dyc.m = float8_amax_both(%dy) : float32[" #b "," #t ",1], float32[1,1," #n "]\n" \
    "F - %dyr.s, %dyr.i = float8_scale_both(%dyr.m) {rule=\"power_of_two\"} : float32[" #b "," #t  \
    ",1], float32[" #b "," #t ",1]\n"                                                              \
    "F - %dyc.s, %dyc.i = float8_scale_both(%dyc.m) {rule=\"power_of_two\"} : float32[1,1," #n     \
    "], float32[1,1," #n "]\n"                                                                     \
    "F - %dyr, %dyc = float8_quantise_both(%dy, %dyr.s, %dyc.s) : float8_e4m3[" #b "," #t "," #n   \
    "], float8_e4m3[" #n "," #b "," #t "]\n"                                                       \
    "F - %w.r, %w.m = float8_amax_both(%w) : float32[" #n ",1], float32[1," #k "]\n"               \
    "F - %w.s, %w.i = float8_scale_both(%w.m) : float32[1," #k "], float32[1," #k "]\n"            \
    "F - %wt = float8_quantise_transposed(%w, %w.s) : float8_e4m3[" #k "," #n "]\n"                \
    "F - %xc.s, %xc.i = float8_amax_scale(%x) {grid=\"1,1," #k "\", rule=\"power_of_two\"} : "     \
    "float32[1,1," #k "], float32[1,1," #k "]\n"                                                   \
    "F - %xc = float8_quantise_transposed(%x, %xc.s) : float8_e4m3[" #k "," #b "," #t "]\n"        \
    "F - %dyl.r, %dyl.ri, %dyl.c, %dyl.ci = float8_line_scales(%dy) {rule=\"power_of_two\"} : "    \
    "float32[" #b "," #t ",1], float32[" #b "," #t ",1], float32[1,1," #n "], float32[1,1," #n     \
    "]\n"                                                                                          \
    "F - %wl.r, %wl.ri, %wl.c, %wl.ci = float8_line_scales(%w) {largest=57344} : float32[" #n      \
    ",1], float32[" #n ",1], float32[1," #k "], float32[1," #k "]\n"

#define FLOAT8_TRANSPOSED_PRODUCTS(b, t, k, n)                                                     \
    FLOAT8_TRANSPOSED(b, t, k, n)                                                                  \
    "F - %xt2 = float8_transpose(%xq) : float8_e4m3[" #k "," #b "," #t "]\n"                       \
    "I - %dx = linear_float8_dx(%dyr, %wt, %dyr.s, %w.s, %dyr.i, %w.i) {transposed=true} : "       \
    "bfloat16[" #b "," #t "," #k "]\n"                                                             \
    "I - %dx2 = linear_float8_dx(%dyr, %wt, %dyr.s, %w.s) {transposed=true} : bfloat16[" #b "," #t \
    "," #k "]\n"                                                                                   \
    "W - %dw = linear_float8_dw(%xt, %dt, %x.s, %dy.s, %x.i, %dy.i) {transposed=true} : "          \
    "float32![" #n "," #k "]\n"                                                                    \
    "W - %dwc = linear_float8_dw(%xc, %dyc, %xc.s, %dyc.s, %xc.i, %dyc.i) {transposed=true} : "    \
    "bfloat16[" #n "," #k "]\n"

/* Ops that also give the largest magnitudes of what they write. */
#define LARGEST(b, t, k)                                                                           \
    "input %x : T[" #b "," #t "," #k "]\n"                                                         \
    "input %r : T[" #b "," #t "," #k "]\n"                                                         \
    "input %dy : T[" #b "," #t "," #k "]\n"                                                        \
    "param %w : T[" #k "]\n"                                                                       \
    "F - %y, %rstd, %l = rms_norm.largest(%x, %w) {offset=1} : T[" #b "," #t "," #k "], "          \
    "float32[" #b "," #t "], float32[" #b "," #t "]\n"                                             \
    "F - %y2, %sum, %rstd2, %l2 = add_rms_norm.largest(%x, %r, %w) : T[" #b "," #t "," #k          \
    "], T[" #b "," #t "," #k "], float32[" #b "," #t "], float32[" #b "," #t "]\n"                 \
    "I - %dx, %dw, %l3 = rms_norm_grad.largest(%dy, %sum, %w, %rstd2, %r) : T[" #b "," #t "," #k   \
    "], T[" #k "], float32[" #b "," #t "]\n"                                                       \
    "F - %z, %l4 = swiglu.largest(%x, %r) : T[" #b "," #t "," #k "], float32[" #b "," #t "]\n"     \
    "I - %dg, %du, %l5, %l6 = swiglu_grad.largest(%dy, %x, %r) : T[" #b "," #t "," #k "], T[" #b   \
    "," #t "," #k "], float32[" #b "," #t "], float32[" #b "," #t "]\n"

#define MX(b, t, k, blocks, down)                                                                  \
    "input %x : T[" #b "," #t "," #k "]\n"                                                         \
    "F - %m = float8_amax(%x) {grid=\"" #b "," #t "," #blocks "\"} : float32[" #b "," #t           \
    "," #blocks "]\n"                                                                              \
    "F - %s = float8_scale(%m) {rule=\"mx_rceil\"} : float32[" #b "," #t "," #blocks "]\n"         \
    "F - %f = float8_scale(%m) {rule=\"mx_floor\"} : float32[" #b "," #t "," #blocks "]\n"         \
    "F - %q = float8_quantise(%x, %s) : float8_e4m3[" #b "," #t "," #k "]\n"                       \
    "F - %m2 = float8_amax(%x) {grid=\"" #b "," #down "," #k "\"} : float32[" #b "," #down "," #k  \
    "]\n"                                                                                          \
    "F - %s2 = float8_scale(%m2) {rule=\"mx_rceil\"} : float32[" #b "," #down "," #k "]\n"         \
    "F - %q2 = float8_quantise(%x, %s2) : float8_e4m3[" #b "," #t "," #k "]\n"                     \
    "W - %dw = linear_float8_dw(%q2, %q2, %s2, %s2) : bfloat16[" #k "," #k "]\n"

#define NVFP4(b, t, k, blocks)                                                                     \
    "input %x : T[" #b "," #t "," #k "]\n"                                                         \
    "input %ordinals : int32[" #b "," #t "]\n"                                                     \
    "F - %whole = float8_amax(%x) {grid=\"1,1,1\"} : float32[1,1,1]\n"                             \
    "F - %m = float8_amax(%x) {grid=\"" #b "," #t "," #blocks "\"} : float32[" #b "," #t           \
    "," #blocks "]\n"                                                                              \
    "F - %s = nvfp4_scale(%m, %whole) : float32[" #b "," #t "," #blocks "]\n"                      \
    "F - %q = nvfp4_quantise(%x, %s) : float8_e4m3[" #b "," #t "," #k "]\n"                        \
    "I - %r = nvfp4_quantise(%x, %s, %ordinals) {seed=3, stream=5} : float8_e4m3[" #b "," #t       \
    "," #k "]\n"                                                                                   \
    "F - %h = float8.hadamard(%x) {seed=7} : T[" #b "," #t "," #k "]\n"

const struct conformance_case conformance_cases[] = {
    {"linear, one token", LINEAR(1, 1, 5, 3), 0, false},
    {"linear, odd", LINEAR(1, 7, 33, 17), 0, false},
    {"linear, vectors", LINEAR(2, 64, 64, 96), 0, false},
    {"linear, many rows", LINEAR(2, 150, 37, 70), 0, false},
    {"linear, one use of each weight",
     "input %x : T[2,9,33]\nparam %w : T[70,33]\nparam %u : T[33,37]\n"
     "F - %y = linear(%x, %w) : T[2,9,70]\nI - %dx = linear_dx(%x, %u) : T[2,9,37]\n",
     0, false},
    {"linears, odd", LINEARS(1, 9, 19, 7, 3, 3), 0, false},
    {"linears, even", LINEARS(2, 64, 64, 64, 32, 32), 0, false},
    {"packed linears, one", MIXED(1, 1, 16, 64, 3), 64, true, true},
    {"packed linears, odd", MIXED(1, 9, 19, 64, 3), 64, true, true},
    {"packed linears, unaligned", MIXED(1, 9, 19, 7, 5), 7, true, true},
    {"packed linears, many", MIXED(3, 61, 64, 128, 64), 128, true, true},
    {"linears and norms", NORMS(9, 19, 70, 64), 64, 2, true},
    {"linears and norms, even", NORMS(64, 32, 64, 96), 96, 2, true},
    {"linears and swiglu", SWIGLU(9, 19, 64), 0, 1},
    {"linears and swiglu, many", SWIGLU(70, 64, 96), 0, 1},
    {"packed linears, frozen", FROZEN(9, 70, 64), 0, false},
    {"packed linears, frozen, odd", FROZEN(5, 33, 77), 0, false},
    {"linear loss, one token", LOSS(1, 1, 5, 7), 7, true, true},
    {"linear loss, odd", LOSS(2, 13, 33, 77), 77, true, true},
    {"linear loss, several chunks", LOSS(3, 343, 2, 4200), 4200, true, true, true},
    {"linear loss, chunks of 62 tokens", LOSS(1, 150, 2, 4200), 4200, true, true, true},
    {"loss, one token", LOGITS(1, 1, 3), 3, false, true},
    {"loss, odd", LOGITS(2, 7, 77), 77, false, true},
    {"loss, long rows", LOGITS(1, 5, 5003), 5003, false, true},
    {"loss in shards, one token", SHARDS(1, 1, 3, 1), 3, false, true},
    {"loss in shards, odd", SHARDS(2, 7, 77, 7), 77, false, true},
    {"loss in shards, the last shorter", SHARDS(2, 7, 77, 5), 77, false, true},
    {"loss in shards, the last empty", SHARDS(1, 5, 10, 6), 10, false, true},
    {"loss in shards, long rows", SHARDS(1, 5, 5004, 2), 5003, false, true},
    {"norm, one token", NORM(1, 1, 3), 0, false},
    {"norm, odd", NORM(2, 7, 77), 0, false},
    {"norm, many rows", NORM(2, 130, 256), 0, false},
    {"norm, narrow", NORM(4, 130, 40), 0, false},
    {"norm, wide", NORM(1, 3, 8264), 0, false, false, true},
    {"norm, narrow, of weights near 0", NORM_OFFSET(4, 130, 40, "1"), 0, false},
    {"norm, of weights near 0", NORM_OFFSET(2, 7, 777, "1"), 0, false},
    {"norm, wide and odd", NORM(1, 3, 2051), 0, false, false, true},
    {"largest magnitudes, odd", LARGEST(2, 7, 77), 0, 1},
    {"largest magnitudes, narrow", LARGEST(4, 130, 40), 0, 1},
    {"largest magnitudes, wide", LARGEST(1, 3, 8264), 0, 1, false, true},
    {"logits, longer than shared memory", LOGITS(1, 2, 65544), 65544, false, false, true},
    {"embedding, several windows", EMBEDDING(3, 3000, 3, 40), 3, false, false, true},
    {"elementwise, one", ELEMENTWISE(1, 1, 1), 0, false},
    {"elementwise, odd", ELEMENTWISE(2, 3, 37), 0, false},
    {"elementwise, many", ELEMENTWISE(2, 129, 128), 0, false},
    {"attention, one token", ATTENTION(1, 1, 1, 1, 4, 4, "_"), 2, true, true},
    {"attention, odd", ATTENTION(2, 37, 3, 1, 20, 20, "_"), 2, true, true},
    {"attention, groups", ATTENTION(2, 70, 4, 2, 16, 16, "_"), 2, true, true},
    {"attention, wide heads", ATTENTION(1, 67, 2, 2, 64, 64, "_"), 2, true, true},
    {"attention, smaller values", ATTENTION(1, 70, 2, 1, 24, 16, "_"), 2, true, true},
    {"attention, larger values", ATTENTION(1, 37, 2, 2, 20, 36, "_"), 2, true, true},
    {"attention, all keys", MASKED(2, 67, 70, 4, 2, 16, 16, "causal=false"), 2, true, true},
    {"attention, window", MASKED(2, 200, 200, 2, 1, 8, 8, "window=17, scale=0.3"), 2, true, true},
    {"attention, soft cap", MASKED(2, 70, 70, 4, 2, 16, 16, "softcap=1.5"), 2, true, true},
    {"attention, soft cap, all keys", MASKED(1, 67, 130, 2, 1, 32, 32, "causal=false, softcap=0.3"),
     2, true, true},
    {"attention, soft cap, window", MASKED(1, 200, 200, 2, 2, 8, 8, "window=17, softcap=50"), 2,
     true, true},
    {"attention, slopes", MASKED(2, 70, 70, 6, 3, 16, 16, "alibi=8"), 2, true, true},
    {"attention, slopes, all keys", MASKED(1, 67, 130, 3, 1, 32, 32, "causal=false, alibi=3"), 2,
     true, true},
    {"attention, wide window", MASKED(1, 300, 300, 2, 2, 16, 16, "window=130"), 2, true, true},
    {"attention, documents", ATTENTION(2, 75, 4, 2, 32, 32, "%documents"), 4, true, true},
    {"attention, documents of one head", DOCUMENTS(3, 70, 2, 2, 16, "documents", "scale=0.3"), 7,
     true, true},
    {"attention, documents, window", DOCUMENTS(2, 70, 2, 1, 16, "documents", "window=9"), 5, true,
     true},
    {"attention, documents, soft cap", DOCUMENTS(2, 75, 2, 1, 16, "documents", "softcap=2"), 4,
     true, true},
    {"attention, documents, slopes", DOCUMENTS(2, 75, 4, 1, 16, "documents", "alibi=8"), 4, true,
     true},
    {"attention, documents, many", DOCUMENTS(2, 40, 2, 1, 16, "documents", "window=3"), 60, true,
     true},
    {"attention, documents, many tiles", DOCUMENTS(1, 200, 4, 1, 16, "documents", "window=9"), 70,
     true, true},
    {"attention, documents that return", DOCUMENTS(2, 40, 4, 2, 16, "returning", "scale=0"), 2,
     true, true},
    {"attention, documents, all keys", DOCUMENTS(2, 40, 2, 2, 16, "documents", "causal=false"), 5,
     true, true},
    {"attention, fewer queries", ATTENTION_SHARDS(2, 37, 70, 3, 1, 20, 20, "_"), 2, true, true},
    {"attention, fewer keys", ATTENTION_SHARDS(2, 150, 70, 4, 2, 16, 16, "_"), 2, true, true},
    {"attention, any positions",
     ATTENTION_SHARDS(2, 75, 90, 4, 2, 16, 16, "_, _, %positions, %k_positions"), 100, true, true},
    {"attention, positions of queries",
     ATTENTION_SHARDS(1, 100, 130, 2, 1, 36, 36, "_, _, %positions, _"), 130, true, true},
    {"attention, any documents",
     ATTENTION_SHARDS(2, 75, 90, 4, 2, 16, 16,
                      "%documents, %k_documents, %positions, %k_positions"),
     9, true, true},
    {"attention, documents, smaller values",
     ATTENTION_SHARDS(1, 75, 90, 2, 1, 48, 32,
                      "%documents, %k_documents, %positions, %k_positions"),
     9, true, true},
    {"attention, block", ATTENTION_SHARDS(1, 256, 256, 2, 2, 16, 16, "_, _, %outer, %inner"), 2,
     true, true},
    {"attention, block of its own",
     ATTENTION_SHARDS(1, 256, 256, 3, 3, 16, 16, "_, _, %outer, %outer"), 2, true, true},
    {"attention, odd block",
     ATTENTION_SHARDS(1, 202, 202, 2, 1, 32, 32, "%documents, %documents, %outer, %inner"), 4, true,
     true},
    {"attention, tiles", ATTENTION(2, 128, 4, 2, 64, 64, "_"), 2, true, true},
    {"attention, tiles, wide heads", MASKED(1, 128, 256, 2, 1, 128, 128, "causal=false"), 2, true,
     true},
    {"attention, tiles, documents", DOCUMENTS(2, 128, 2, 1, 64, "documents", "window=50"), 5, true,
     true},
    {"attention, tiles, long documents", DOCUMENTS(1, 300, 2, 1, 128, "documents", "scale=0"), 2,
     true, true},
    {"attention, tiles, latent", ATTENTION(1, 128, 1, 1, 192, 128, "_"), 2, true, true},
    {"attention, tiles, window", MASKED(1, 256, 256, 2, 2, 32, 32, "window=100"), 2, true, true},
    {"copies of heads, odd", COPIES(2, 5, 6, 3, 7), 0, false, true},
    {"copies of heads", COPIES(1, 65, 8, 1, 64), 0, false, true},
    {"attention sink, odd", SINK(2, 37, 3, 35), 0, false, true},
    {"attention sink, many heads", SINK(1, 5, 66, 8), 0, false, true, true},
    {"rope", ROPE(2, 9, 3, 16, "_", "theta=10000"), 50, false},
    {"rope, many heads", ROPE(1, 5, 9, 32, "_", "theta=10000"), 50, false},
    {"rope, odd pairs", ROPE(1, 5, 2, 6, "%positions", "theta=500000, inverse=true"), 5000, false},
    {"rope, scaled",
     ROPE(1, 33, 2, 64, "_",
          "theta=500000, factor=8, low_freq_factor=1, high_freq_factor=4, "
          "original_max_position=8192"),
     50, false},
    {"rope, the last features", ROPE(2, 9, 3, 40, "%positions", "theta=10000, first=8"), 5000,
     false},
    {"rope, the last vector", ROPE(1, 9, 2, 21, "_", "theta=10000, first=5, inverse=true"), 50,
     false},
    {"rope, the first features",
     ROPE(2, 9, 3, 40, "%positions", "theta=10000, rotated=16, magnitude=1.25"), 5000, false},
    {"rope, features between",
     ROPE(2, 9, 3, 37, "_", "theta=10000, first=3, rotated=10, inverse=true"), 50, false},
    {"rope, neighbours between",
     ROPE(2, 9, 3, 40, "_", "theta=10000, first=8, rotated=16, interleaved=true, magnitude=0.5"),
     50, false},
    {"rope, linear", ROPE(1, 33, 2, 64, "_", "theta=10000, factor=4, scaling=linear"), 50, false},
    {"rope, divided", ROPE(1, 33, 2, 6, "_", "scaling=longrope, divisors=1.5:2:4"), 50, false},
    {"rope, odd neighbours",
     ROPE(2, 9, 3, 19, "%positions", "theta=10000, first=5, interleaved=true"), 5000, false},
    {"rope, the last neighbours",
     ROPE(1, 33, 2, 192, "_",
          "theta=10000, factor=40, original_max_position=4096, scaling=yarn, first=128, "
          "interleaved=true, inverse=true"),
     50, false},
    {"temper", TEMPER(2, 9, 3, 19, "%positions"), 5000, 1},
    {"temper, counted", TEMPER(2, 33, 2, 16, "_"), 50, 1},
    {"document chunks", CHUNKS(3, 67), 5000, false},
    {"sums of softmax, odd", SOFTMAX_SUM(2, 9, 37), 0, 0, true},
    {"sums of softmax", SOFTMAX_SUM(4, 70, 64), 0, 0, true},
    {"rows, odd", ROWS(2, 9, 37), 0, false},
    {"rows, long", ROWS(2, 3, 1032), 0, false},
    {"rows of one number", ROWS(2, 35, 1), 0, false},
    {"split, odd", SPLIT(2, 9, 12, 7, 1, 4), 0, false},
    {"split", SPLIT(2, 33, 288, 192, 64, 32), 0, false, false, true},
    {"latent attention, odd", LATENT(2, 9, 3, 5, 7, 12, 3, 8), 0, false},
    {"latent attention", LATENT(1, 65, 4, 64, 32, 96, 32, 96), 0, false, false, true},
    {"causal convolution, odd", CONV(2, 9, 5, 4, "_", "_"), 0, false},
    {"causal convolution, bias", CONV(2, 33, 70, 3, "_", "%bias"), 0, false},
    {"causal convolution, documents", CONV(2, 70, 37, 4, "%documents", "%bias"), 3, false},
    {"causal convolution, short", CONV(1, 2, 64, 4, "_", "_"), 0, false},
    {"state scan, odd", SCAN(2, 9, 3, 5, 1, 7, "_", "least=0"), 0, 0, true},
    {"state scan, groups", SCAN(2, 70, 4, 6, 2, 8, "_", "least=0"), 0, 0, true},
    {"state scan, documents", SCAN(2, 140, 2, 8, 1, 5, "%documents", "least=0"), 3, 0, true},
    {"state scan, limits", SCAN(1, 66, 4, 3, 4, 4, "%documents", "least=0.3, most=1"), 2, 0, true},
    {"causal convolution, many", CONV(2, 150, 160, 4, "%documents", "_"), 2, false, false, true},
    {"gates, odd", GATES(2, 9, 5), 0, false, true},
    {"gates, many", GATES(2, 65, 32), 0, false, true},
    {"causal convolution, segments", CONV_SEGMENTS(2, 3, 7, 19, 4, 3, "%documents"), 3, false},
    {"causal convolution, states", CONV_SEGMENTS(1, 2, 3, 70, 3, 2, "_"), 0, false},
    {"state scan, segments", SCAN_SEGMENTS(1, 2, 70, 4, 6, 2, 8, "%documents"), 2, 0, true},
    {"state scan, states", SCAN_SEGMENTS(2, 2, 9, 3, 5, 1, 7, "_"), 0, 0, true},
    {"gated delta rule, segments", DELTA_SEGMENTS(1, 2, 70, 4, 2, 6, 10, "%documents"), 3, false,
     true},
    {"gated delta rule, states", DELTA_SEGMENTS(2, 2, 9, 2, 1, 5, 3, "_"), 0, false, true},
    {"states of segments", FOLD(2, 5, 3, 6, 6, 20, "%ends"), 2, false},
    {"states by factors", FOLD(1, 4, 2, 5, 1, 7, "_"), 0, false},
    {"gated delta rule, odd", DELTA(2, 9, 2, 1, 5, 3, "_"), 0, false, true},
    {"gated delta rule, documents", DELTA(1, 40, 4, 2, 6, 10, "%documents"), 3, false, true},
    {"gated delta rule, chunks", DELTA(1, 130, 2, 2, 4, 20, "%documents"), 2, false, true, true},
    {"causal convolution, part", CONV_PART(9, 37, 4, 3), 9, false},
    {"causal convolution, token", CONV_PART(1, 70, 4, 3), 1, false},
    {"state scan, part", SCAN_PART(70, 4, 6, 2, 8), 70, 0, true},
    {"state scan, token", SCAN_PART(1, 4, 5, 2, 7), 1, 0, true},
    {"gated delta rule, part", DELTA_PART(70, 4, 2, 6, 10), 70, false, true},
    {"gated delta rule, token", DELTA_PART(1, 4, 2, 6, 3), 1, false, true},
    {"embedding, odd", EMBEDDING(2, 9, 11, 33), 11, false},
    {"embedding, many rows", EMBEDDING(2, 40, 2100, 8), 2100, false},
    {"embedding, many rows, frequent tokens", EMBEDDING(2, 400, 2100, 8), 3, false, false, true},
    {"embedding, many", EMBEDDING(3, 500, 67, 64), 67, false},
    {"cache_write",
     "state %cache : T[2,33,3,8]\ninput %x : T[2,9,3,8]\ninput %slots : int32[2,9]\n"
     "F - cache_write(%cache, %x, %slots)\n",
     33, false},
    {"experts, odd", EXPERTS(2, 9, 11, 7, 5, 2), 5, 3},
    {"experts in 8 bits, rows", FLOAT8_EXPERTS(2, 9, 11, 7, 5, 2, "recipe=rowwise"), 5, 3},
    {"experts in 8 bits, blocks", FLOAT8_EXPERTS(1, 5, 130, 132, 2, 2, "recipe=blockwise"), 2, 3},
    {"experts in 8 bits, many rows", FLOAT8_EXPERTS(1, 150, 20, 24, 2, 2, "recipe=blockwise"), 2,
     3},
    {"experts in 8 bits, uneven",
     FLOAT8_EXPERTS_OF("uneven", 1, 257, 20, 12, 4, 1, "recipe=blockwise"), 4, 3, false, true},
    {"experts in 8 bits, uneven rows",
     FLOAT8_EXPERTS_OF("uneven", 1, 257, 20, 12, 4, 1, "recipe=rowwise"), 4, 3, false, true},
    {"experts in 8 bits, many rows of an expert",
     FLOAT8_EXPERTS_OF("uneven", 1, 900, 8, 4, 4, 1, "recipe=rowwise"), 4, 3, false, true},
    {"experts in 8 bits, many slices", FLOAT8_EXPERTS(1, 1, 1300, 4, 1, 1, "recipe=blockwise"), 1,
     3, false, true},
    {"experts in 8 bits, many slices of rows",
     FLOAT8_EXPERTS(1, 1, 1300, 4, 1, 1, "recipe=rowwise"), 1, 3, false, true},
    {"experts in 8 bits, blocks of 32", FLOAT8_EXPERTS(1, 45, 96, 72, 2, 2, "recipe=mxfp8"), 2, 3},
    {"experts in 8 bits, long rows", FLOAT8_EXPERTS(1, 2, 2056, 2, 1, 1, "recipe=rowwise"), 1, 3,
     false, true},
    {"experts in 8 bits, long odd rows", FLOAT8_EXPERTS(1, 2, 2051, 2, 1, 1, "recipe=rowwise"), 1,
     3, false, true},
    {"experts in 8 bits, biased",
     BIASED_FLOAT8_EXPERTS(1, 7, 20, 18, 3, 2, "recipe=rowwise, alpha=1.702, limit=2, offset=1"), 3,
     3},
    {"experts, full tiles", EXPERTS(2, 70, 32, 24, 3, 2), 3, 3},
    {"experts, odd tiles", EXPERTS(1, 170, 136, 72, 2, 2), 2, 3, false, true},
    {"experts, several slices", EXPERTS(1, 270, 328, 264, 2, 2), 2, 3, false, true},
    {"experts, biased, odd", BIASED_EXPERTS(2, 9, 11, 7, 5, 2, "alpha=1.702, limit=2, offset=1"), 5,
     3, true},
    {"experts, biased, full tiles",
     BIASED_EXPERTS(2, 70, 32, 24, 3, 2, "alpha=1.702, limit=7, offset=1"), 3, 3, true, true},
    {"experts, biased, odd tiles", BIASED_EXPERTS(1, 90, 136, 72, 1, 2, "offset=-0.5"), 1, 3, true,
     true},
    {"biases of experts, odd", EXPERT_BIAS(2, 9, 11, 5, 3), 5, 0},
    {"biases of experts", EXPERT_BIAS(1, 33, 520, 3, 2), 3, 0},
    {"choice of experts, odd", CHOICE(3, 9, 5, 2), 5, true, true},
    {"choice of experts, several warps", CHOICE(2, 33, 70, 4), 70, true, true},
    {"choice of experts, biased, odd", BIASED_CHOICE(3, 9, 6, 2, "groups=2, groups_chosen=1"), 6,
     true, true},
    {"choice of experts, biased", BIASED_CHOICE(2, 33, 72, 4, "groups=8, groups_chosen=3"), 72,
     true},
    {"squared norm",
     "state %x : T[37]\nstate %y : float32[70001,3]\n"
     "post - %s = squared_norm(%x, %y) : float64[]\n"
     "post - %norm, %coefficient = clip_coefficient(%s, %s) {max_norm=1} : float32[], float32[]\n"
     "post - %norm2, %coefficient2 = clip_coefficient(%s) : float32[], float32[]\n",
     0, false},
    {"add, numbers",
     "scalar %x : float64[]\nscalar %z : float64[]\npre - %y = add(%x, %z) : float64[]\n", 0,
     false},
    {"reciprocal",
     "scalar %x : float32[]\npre - %y = reciprocal(%x) : float32[]\n"
     "scalar %z : float64[]\npre - %u = reciprocal(%z) : float64[]\n",
     0, false},
    {"adamw", ADAMW(37, 1000, "clip"), 0, false},
    {"adamw, skipped", ADAMW(3, 7, "skip"), 0, false},
    {"adamw, copies", ADAMW_COPIES(37, 1000, "clip"), 0, false},
    {"adamw, copies, skipped", ADAMW_COPIES(3, 7, "skip"), 0, false},
    {"adamw, 8 bits", ADAMW_FLOAT8(37, 64, 4, "clip"), 0, false},
    {"adamw, 8 bits, long blocks", ADAMW_FLOAT8(3, 512, 2, "clip"), 0, false},
    {"moving average", AVERAGE(37, 241), 0, false},
    {"step by signs", SIGN_STEP("clip"), 0, false},
    {"step by signs, skipped", SIGN_STEP("skip"), 0, false},
    {"muon, odd", MUON(2, 7, 19, "clip", "float32"), 0, false},
    {"muon, tall", MUON(1, 40, 16, "clip", "float32"), 0, false},
    {"muon in bfloat16, odd", MUON(2, 7, 19, "clip", "bfloat16"), 0, 3},
    {"muon in bfloat16, tall", MUON(1, 40, 16, "clip", "bfloat16"), 0, 3},
    {"muon, skipped",
     "scalar %lr : float64[]\nscalar %skip : float32[]\nparam %p : float32[5,7]\n"
     "state %o : T[5,7]\npost - muon.update(%lr, %skip, %p, %o) {weight_decay=0.1, scale=3}\n",
     0, false},
    {"rows in 8 bits, odd", ROW_CODES(2, 5, 131, 2), 1, false},
    {"rows of experts, odd", ROUTE(2, 29, 7, 2, 5, 3, 31), 5, false},
    {"rows of experts", ROUTE(1, 300, 16, 2, 4, 2, 200), 4, false},
    {"adamw, 8 bits, skipped", ADAMW_FLOAT8(3, 48, 3, "skip"), 0, false},
    {"float8, odd", FLOAT8(2, 8, 16, 32), 0, false},
    {"float8, many", FLOAT8(2, 72, 96, 48), 0, false},
    {"float8, tiles", FLOAT8(4, 40, 96, 48), 0, false},
    {"float8, no multiples", FLOAT8(3, 7, 37, 13), 0, false},
    {"float8 transposed", FLOAT8_TRANSPOSED_PRODUCTS(2, 24, 48, 16), 0, false},
    {"float8 transposed, tiles", FLOAT8_TRANSPOSED_PRODUCTS(3, 48, 80, 144), 0, false},
    {"float8 transposed, no multiples", FLOAT8_TRANSPOSED(3, 7, 37, 13), 0, false},
    {"nvfp4", NVFP4(2, 32, 48, 3), 1000, false},
    {"float8, blocks", MX(2, 64, 96, 3, 2), 0, false},
    /* Magnitudes of cells that are NaN beside others, which float8_amax does not make. */
    {"nvfp4, scales that are shared",
     "input %r : float32[32,16]\n"
     "input %c : float32[2,256]\n"
     "input %x : T[1,16]\n"
     "F - %m = float8_amax(%x) {grid=\"1,1\"} : float32[1,1]\n"
     "F - %rs = nvfp4_scale(%r, %m) {share=rows} : float32[32,16]\n"
     "F - %cs = nvfp4_scale(%c, %m) {share=columns} : float32[2,256]\n",
     0, false},
    {"products of blocks of 32",
     "input %x : T[1,160,160]\n"
     "input %d : T[1,160,64]\n"
     "param %w : T[64,160]\n"
     "F - %xr.m = float8_amax(%x) {grid=\"1,160,5\"} : float32[1,160,5]\n"
     "F - %xr.s = float8_scale(%xr.m) {rule=\"mx_rceil\"} : float32[1,160,5]\n"
     "F - %xr = float8_quantise(%x, %xr.s) : float8_e4m3[1,160,160]\n"
     "F - %xc.m = float8_amax(%x) {grid=\"1,5,160\"} : float32[1,5,160]\n"
     "F - %xc.s = float8_scale(%xc.m) {rule=\"mx_rceil\"} : float32[1,5,160]\n"
     "F - %xc = float8_quantise(%x, %xc.s) : float8_e4m3[1,160,160]\n"
     "F - %wr.m = float8_amax(%w) {grid=\"64,5\"} : float32[64,5]\n"
     "F - %wr.s = float8_scale(%wr.m) {rule=\"mx_rceil\"} : float32[64,5]\n"
     "F - %wr = float8_quantise(%w, %wr.s) : float8_e4m3[64,160]\n"
     "F - %wc.m = float8_amax(%w) {grid=\"2,160\"} : float32[2,160]\n"
     "F - %wc.s = float8_scale(%wc.m) {rule=\"mx_rceil\"} : float32[2,160]\n"
     "F - %wc = float8_quantise(%w, %wc.s) : float8_e4m3[64,160]\n"
     "F - %dr.m = float8_amax(%d) {grid=\"1,160,2\"} : float32[1,160,2]\n"
     "F - %dr.s = float8_scale(%dr.m) {rule=\"mx_rceil\"} : float32[1,160,2]\n"
     "F - %dr = float8_quantise(%d, %dr.s) : float8_e4m3[1,160,64]\n"
     "F - %dc.m = float8_amax(%d) {grid=\"1,5,64\"} : float32[1,5,64]\n"
     "F - %dc.s = float8_scale(%dc.m) {rule=\"mx_rceil\"} : float32[1,5,64]\n"
     "F - %dc = float8_quantise(%d, %dc.s) : float8_e4m3[1,160,64]\n"
     "F - %y = linear_float8(%xr, %wr, %xr.s, %wr.s) {block=32} : bfloat16[1,160,64]\n"
     "I - %dx = linear_float8_dx(%dr, %wc, %dr.s, %wc.s) {dtype=\"float32\", block=32} : "
     "float32[1,160,160]\n"
     "W - %dw = linear_float8_dw(%xc, %dc, %xc.s, %dc.s) {block=32} : float32![64,160]\n",
     0, false},
    {"products of blocks of 16",
     "input %x : T[1,144,80]\n"
     "input %d : T[1,144,48]\n"
     "param %w : T[48,80]\n"
     "F - %x.m = float8_amax(%x) {grid=\"1,1,1\"} : float32[1,1,1]\n"
     "F - %d.m = float8_amax(%d) {grid=\"1,1,1\"} : float32[1,1,1]\n"
     "F - %w.m = float8_amax(%w) {grid=\"1,1\"} : float32[1,1]\n"
     "F - %xr.m = float8_amax(%x) {grid=\"1,144,5\"} : float32[1,144,5]\n"
     "F - %xr.s = nvfp4_scale(%xr.m, %x.m) : float32[1,144,5]\n"
     "F - %xr = nvfp4_quantise(%x, %xr.s) : float8_e4m3[1,144,80]\n"
     "F - %xc.m = float8_amax(%x) {grid=\"1,9,80\"} : float32[1,9,80]\n"
     "F - %xc.s = nvfp4_scale(%xc.m, %x.m) : float32[1,9,80]\n"
     "F - %xc = nvfp4_quantise(%x, %xc.s) : float8_e4m3[1,144,80]\n"
     "F - %wr.m = float8_amax(%w) {grid=\"48,5\"} : float32[48,5]\n"
     "F - %wr.s = nvfp4_scale(%wr.m, %w.m) {share=rows} : float32[48,5]\n"
     "F - %wr = nvfp4_quantise(%w, %wr.s) : float8_e4m3[48,80]\n"
     "F - %wc.m = float8_amax(%w) {grid=\"3,80\"} : float32[3,80]\n"
     "F - %wc.s = nvfp4_scale(%wc.m, %w.m) {share=columns} : float32[3,80]\n"
     "F - %wc = nvfp4_quantise(%w, %wc.s) : float8_e4m3[48,80]\n"
     "F - %dr.m = float8_amax(%d) {grid=\"1,144,3\"} : float32[1,144,3]\n"
     "F - %dr.s = nvfp4_scale(%dr.m, %d.m) : float32[1,144,3]\n"
     "F - %dr = nvfp4_quantise(%d, %dr.s) : float8_e4m3[1,144,48]\n"
     "F - %dc.m = float8_amax(%d) {grid=\"1,9,48\"} : float32[1,9,48]\n"
     "F - %dc.s = nvfp4_scale(%dc.m, %d.m) : float32[1,9,48]\n"
     "F - %dc = nvfp4_quantise(%d, %dc.s) : float8_e4m3[1,144,48]\n"
     "F - %y = linear_nvfp4(%xr, %wr, %xr.s, %wr.s, %x.m, %w.m) : bfloat16[1,144,48]\n"
     "I - %dx = linear_nvfp4_dx(%dr, %wc, %dr.s, %wc.s, %d.m, %w.m) {dtype=\"float32\"} : "
     "float32[1,144,80]\n"
     "W - %dw = linear_nvfp4_dw(%xc, %dc, %xc.s, %dc.s, %x.m, %d.m) : float32![48,80]\n",
     0, false},
    {"float8, large",
     "input %x : T[400,300]\n"
     "F - %m = float8_amax(%x) {grid=\"1,1\"} : float32[1,1]\n"
     "F - %c = float8_amax(%x) {grid=\"1,300\"} : float32[1,300]\n",
     0, false, false, true},
    {"float8, many strips",
     "input %x : T[3,150,264]\n"
     "F - %r = float8_amax(%x) {grid=\"3,150,1\"} : float32[3,150,1]\n"
     "F - %c = float8_amax(%x) {grid=\"1,1,264\"} : float32[1,1,264]\n",
     0, false},
    {"float8, many strips, rows and columns",
     "input %x : T[3,150,264]\n"
     "F - %r, %c = float8_amax_both(%x) : float32[3,150,1], float32[1,1,264]\n"
     "F - %s, %i = float8_amax_scale(%x) {grid=\"1,1,264\"} : float32[1,1,264], float32[1,1,264]\n",
     0, false},
    {"parts",
     "input %x : T[3,7,5]\ninput %y : T[3,2,5]\n"
     "F - %n = narrow(%x) {dim=1, from=2, size=3} : T[3,3,5]\n"
     "F - %c = concat(%x, %y) {dim=1} : T[3,9,5]\n"
     "F - %p = pad(%x) {dim=1, from=1, size=9} : T[3,9,5]\n"
     "F - %q = pad(%x) {dim=2, from=3, size=8} : T[3,7,8]\n",
     0, false},
    {"decay, of numbers far below 0",
     "input %x : T[3,7,37]\nparam %a : T[37]\nparam %bias : T[37]\n"
     "init - init_constant(%a) {value=0.5}\n"
     "init - init_constant(%bias) {value=-15}\n"
     "F - %y = decay(%x, %a, %bias) : float32[3,7,37]\n",
     0, false},
    {"rows in 8 bits",
     "input %x : T[3,7,300]\n"
     "F - %q, %f = ep.quantise(%x) : float8_e4m3[3,7,300], float32[3,7,3]\n"
     "F - %tiny = scale(%x) {factor=1e-37} : T[3,7,300]\n"
     "F - %r, %g = ep.quantise(%tiny) : float8_e4m3[3,7,300], float32[3,7,3]\n"
     "F - %y = ep.dequantise(%q, %f) {dtype=\"T\"} : T[3,7,300]\n",
     0, false},
    {"activations, one", ACTIVATIONS(1, 1, 1), 0, false},
    {"activations, odd", ACTIVATIONS(3, 7, 37), 0, false},
    {"sums over rows, wide", WIDE_SUM(2, 33, 2101), 0, 0, false, true},
    {"activations, large", ACTIVATIONS(4, 33, 300), 0, false},
    {"layer norm, odd", LAYER_NORM(3, 7, 37), 0, false},
    {"layer norm, large", LAYER_NORM(4, 33, 300), 0, false},
    {"offload",
     "param %p host : T[37,5]\nstate %q host : float32[333]\ninput %x : int32[5,3]\n"
     "pre - %u = load(%p) : T[37,5]\npre - %v = load(%q) : float32[333]\n"
     "pre - %w = offload(%u) : T[37,5]\npre - %z = load(%w) : T[37,5]\n"
     "F - %y = offload(%x) : int32[5,3]\npost - store(%p, %u)\n",
     7, false},
    {"init",
     "param %p : T[37,5]\nparam %q : float32[300,33]\nparam %r : T[77]\nparam %s : T[37,5]\n"
     "init - init_normal(%p) {std=0.02, seed=7}\n"
     "init - init_normal(%q) {std=1, truncate=1.5, seed=123456789012}\n"
     "init - init_constant(%r) {value=1}\n"
     "init - init_uniform(%s) {low=-2, high=3, seed=9}\n",
     0, false},
    {0}};

const struct conformance_case bench_cases[] = {
    {"linear, debug, q", LINEAR(8, 256, 256, 256), 0, false},
    {"linear, debug, ffn", LINEAR(8, 256, 256, 768), 0, false},
    {"linears, debug, qkv", LINEARS(8, 256, 256, 256, 256, 256), 0, false},
    {"linear, debug, down", LINEAR(8, 256, 768, 256), 0, false},
    {"linear, 124M, q", LINEAR(4, 512, 768, 768), 0, false},
    {"linear, 124M, ffn", LINEAR(4, 512, 768, 2048), 0, false},
    {"linear, 124M, down", LINEAR(4, 512, 2048, 768), 0, false},
    {"loss, debug", LOSS(8, 256, 256, 2048), 2048, true, true},
    {"loss, 124M", LOSS(4, 512, 768, 32000), 32000, true, true},
    {"loss in shards, debug", SHARDS(8, 256, 2048, 1), 2048, false, true},
    {"loss in shards, 124M", SHARDS(4, 512, 32000, 1), 32000, false, true},
    {"norm, debug", NORM(8, 256, 256), 0, false},
    {"norm, 124M", NORM(4, 512, 768), 0, false},
    {"activations, 124M", ACTIVATIONS(4, 512, 3072), 0, false},
    {"layer norm, 124M", LAYER_NORM(4, 512, 768), 0, false},
    {"elementwise, debug", ELEMENTWISE(8, 256, 768), 0, false},
    {"elementwise, 124M", ELEMENTWISE(4, 512, 2048), 0, false},
    {"attention, debug", ATTENTION(8, 256, 16, 16, 16, 16, "_"), 2, true, true},
    {"attention, 124M", ATTENTION(4, 512, 12, 12, 64, 64, "_"), 2, true, true},
    {"attention, DeepSeek-V3", ATTENTION(1, 1024, 8, 8, 192, 128, "_"), 2, true, true},
    {"attention sink, gpt-oss", SINK(1, 2048, 64, 64), 0, false, true},
    {"rope, debug", ROPE(8, 256, 16, 16, "_", "theta=500000"), 50, false},
    {"rope, 124M", ROPE(4, 512, 12, 64, "_", "theta=500000"), 50, false},
    {"rope, latent attention",
     ROPE(2, 512, 32, 192, "_", "theta=10000, first=128, interleaved=true"), 50, false},
    {"split, latent attention", SPLIT(4, 2048, 608, 512, 64, 32), 0, false},
    {"latent attention", LATENT(2, 512, 32, 128, 128, 256, 64, 192), 0, false},
    {"embedding, debug", EMBEDDING(8, 256, 2048, 256), 2048, false},
    {"embedding, 124M", EMBEDDING(4, 512, 32000, 768), 32000, false},
    {"experts, 8 of 32", EXPERTS(4, 512, 768, 384, 32, 8), 32, 3},
    {"experts, biased, 4 of 32",
     BIASED_EXPERTS(4, 512, 768, 768, 32, 4, "alpha=1.702, limit=7, offset=1"), 32, 3},
    {"biases of experts, 4 of 32", EXPERT_BIAS(4, 512, 2880, 32, 4), 32, 0},
    {"choice of 8 of 128", CHOICE(4, 512, 128, 8), 128, true, true},
    {"choice of 8 of 256", CHOICE(4, 512, 256, 8), 256, true, true},
    {"choice of 8 of 256, biased", BIASED_CHOICE(4, 512, 256, 8, "groups=8, groups_chosen=4"), 256,
     true, true},
    {"adamw", ADAMW(8000000, 1000000, "clip"), 0, false},
    {"norm of gradients",
     "state %x : float32[20000000]\npost - %s = squared_norm(%x) : float64[]\n", 0, false},
    {"init",
     "param %p : float32[20000000]\ninit - init_normal(%p) {std=0.02, truncate=3, seed=7}\n", 0,
     false},
    {"causal convolution, Qwen3-Next", CONV(4, 512, 1024, 4, "_", "_"), 0},
    {"gated delta rule, Qwen3-Next", DELTA(4, 512, 8, 4, 128, 128, "_"), 0},
    {"state scan, Granite 4", SCAN(4, 512, 16, 64, 1, 128, "_", "least=0"), 0},
    {0}};
