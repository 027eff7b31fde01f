/*
 * Float8 training (Micikevicius et al. 2022; recipes as in torchao): the matrix products of linear
 * layers have 8-bit operands, each quantised with a scale from its largest magnitude.
 *
 *   tensorwise             one scale for each tensor; float8_e5m2 gradients
 *   rowwise                one for each row and column that is summed over; powers of two
 *   rowwise_with_gw_hp     the same, and gradients of weights are computed as without Float8
 *   mxfp8, mxfp8_floor     one for each 32 numbers (OCP MX); mxfp8 rounds scales up
 *   nvfp4                  4 bits, one for each 16 numbers and one for the tensor (nvfp4.c)
 *   none                   linear layers stay as they are; experts alone have Float8 products
 *
 * choose.c picks the layers. Differentiation then sees one product of full-precision operands, and
 * its two gradients. quantise.c gives these quantised operands. Everything else follows: a largest
 * magnitude over shards is a pending maximum, and an operand that a rank needs whole is gathered
 * after it was quantised, one byte for each element. At last transposes.c stores operands in the
 * layout that the device's products read.
 */
#include <ctitan/error.h>
#include <ctitan/lib/names.h>
#include <ctitan/plugin.h>
#include <ctitan/text.h>

#include "float8.h"

struct float8_config float8_config;

static const struct ct_option options[] = {
    CT_OPT_ENUM(struct float8_config, recipe, "recipe", "tensorwise",
                "tensorwise|rowwise|rowwise_with_gw_hp|mxfp8|mxfp8_floor|nvfp4|none",
                "Which elements share a scale, and how scales are rounded; none: no linear layer "
                "is changed"),
    CT_OPT_STRING(struct float8_config, filter, "filter", CT_REGION_HEAD,
                  "Layers to leave unchanged, comma-separated: regions, or parts of weights' "
                  "names; auto_filter_small_kn: layers too small to gain"),
    CT_OPT_ENUM(struct float8_config, experts, "experts", "none", FLOAT8_EXPERTS_RECIPES,
                "Products of mixtures' experts: none: as without Float8; else which elements share "
                "a scale"),
    CT_OPT_BOOL(struct float8_config, all_gather, "all_gather", "false",
                "recipe = tensorwise: quantise parameters before they are gathered, so that Float8 "
                "is sent"),
    {0}};

#define BOTH(cells)                                                                                \
    {                                                                                              \
        cells, cells                                                                               \
    }
#define BLOCKS(size)                                                                               \
    .block = size, .gradient = CT_E4M3, .y = BOTH(FLOAT8_ROW_BLOCK),                               \
    .dx = {FLOAT8_ROW_BLOCK, FLOAT8_COLUMN_BLOCK}, .dw = BOTH(FLOAT8_COLUMN_BLOCK)

static const struct float8_recipe recipes[] = {
    [FLOAT8_TENSORWISE] = {.rule = FLOAT8_EXACT, .gradient = CT_E5M2},
    [FLOAT8_ROWWISE] = {.rule = FLOAT8_POWER_OF_TWO,
                        .gradient = CT_E4M3,
                        .y = BOTH(FLOAT8_ROW),
                        .dx = {FLOAT8_ROW, FLOAT8_COLUMN},
                        .dw = BOTH(FLOAT8_COLUMN)},
    [FLOAT8_ROWWISE_WITH_GW_HP] = {.rule = FLOAT8_POWER_OF_TWO,
                                   .gradient = CT_E4M3,
                                   .y = BOTH(FLOAT8_ROW),
                                   .dx = {FLOAT8_ROW, FLOAT8_TENSOR},
                                   .plain_dw = true},
    [FLOAT8_MXFP8] = {.rule = FLOAT8_MX_RCEIL, BLOCKS(FLOAT8_BLOCK)},
    [FLOAT8_MXFP8_FLOOR] = {.rule = FLOAT8_MX_FLOOR, BLOCKS(FLOAT8_BLOCK)},
    [FLOAT8_RECIPE_NVFP4] = {.nvfp4 = true, BLOCKS(FLOAT8_NVFP4)},
};

const struct float8_recipe *float8_recipe(void)
{
    return float8_config.recipe == FLOAT8_NONE ? NULL : &recipes[float8_config.recipe];
}

const char *float8_word(const char *option, struct ct_arena *arena)
{
    return ct_option_text(ct_option_find(options, option), &float8_config, arena);
}

static const struct ct_transform choose = {
    .size = sizeof(struct ct_transform),
    .name = "float8.choose",
    .summary = "turns linear layers into Float8 products",
    .phase = CT_PHASE_PRECISION,
    .after = CT_NAMES("precision"),
    .evaluation = true,
    .apply = float8_choose,
};

static const struct ct_transform quantise = {
    .size = sizeof(struct ct_transform),
    .name = "float8",
    .summary = "quantises the operands of Float8 products",
    .phase = CT_PHASE_DIFFERENTIATE,
    .after = CT_NAMES("gradients"),
    .evaluation = true,
    .apply = float8_quantise_operands,
};

static const struct ct_transform experts = {
    .size = sizeof(struct ct_transform),
    .name = "float8.experts",
    .summary = "gives mixtures Float8 products",
    .phase = CT_PHASE_COLLECTIVE,
    .needs = CT_NAMES("collectives"),
    .after = CT_NAMES("rows"),
    .evaluation = true,
    .apply = float8_use_experts,
};

static const struct ct_transform maxima = {
    .size = sizeof(struct ct_transform),
    .name = "float8.maxima",
    .summary = "joins all-reduces of largest magnitudes",
    .phase = CT_PHASE_MEMORY,
    .evaluation = true,
    .apply = float8_join_maxima,
};

static const struct ct_transform largest = {
    .size = sizeof(struct ct_transform),
    .name = "float8.largest",
    .summary = "ops that write tensors find their largest magnitudes",
    .phase = CT_PHASE_FUSE,
    .gives = CT_NAMES("largest"),
    .after = CT_NAMES("preferred", "compiled_formulas"),
    .evaluation = true,
    .apply = float8_find_where_written,
};

static const struct ct_transform layouts = {
    .size = sizeof(struct ct_transform),
    .name = "float8.layouts",
    .summary = "casts write the layouts that the device's products read",
    .phase = CT_PHASE_FUSE,
    .after = CT_NAMES("largest"),
    .evaluation = true,
    .apply = float8_lay_out,
};

CT_PLUGIN(.name = "float8", .version = "1.0",
          .summary = "Float8 products: tensorwise, rowwise and MX scales, Float8 gathers",
          .options = options, .config = &float8_config, .config_size = sizeof(float8_config),
          .offers = CT_OFFERS(
              {CT_OP, "float8_amax", &float8_op_amax}, {CT_OP, "float8_scale", &float8_op_scale},
              {CT_OP, "float8_quantise", &float8_op_quantise},
              {CT_OP, "float8_amax_both", &float8_op_amax_both},
              {CT_OP, "float8_line_scales", &float8_op_line_scales},
              {CT_OP, "float8_amax_scale", &float8_op_amax_scale},
              {CT_OP, "float8_scale_both", &float8_op_scale_both},
              {CT_OP, "float8_transpose", &float8_op_transpose},
              {CT_OP, "float8_quantise_transposed", &float8_op_quantise_transposed},
              {CT_OP, "float8_quantise_both", &float8_op_quantise_both},
              {CT_OP, "rms_norm.largest", &float8_op_writers[0]},
              {CT_OP, "add_rms_norm.largest", &float8_op_writers[1]},
              {CT_OP, "rms_norm_grad.largest", &float8_op_writers[2]},
              {CT_OP, "swiglu.largest", &float8_op_writers[3]},
              {CT_OP, "swiglu_grad.largest", &float8_op_writers[4]},
              {CT_TRANSFORM, "float8.largest", &largest},
              {CT_TRANSFORM, "float8.layouts", &layouts},
              {CT_OP, "linear_float8", &float8_op_linear},
              {CT_OP, "linear_float8_dx", &float8_op_dx},
              {CT_OP, "linear_float8_dw", &float8_op_dw}, {CT_TRANSFORM, "float8.choose", &choose},
              {CT_TRANSFORM, "float8", &quantise}, {CT_TRANSFORM, "float8.maxima", &maxima},
              {CT_OP, "float8.experts", &float8_op_experts},
              {CT_OP, "float8.experts_dx", &float8_op_experts_dx},
              {CT_OP, "float8.experts_dw", &float8_op_experts_dw},
              {CT_OP, "float8.experts_grad", &float8_op_experts_grad},
              {CT_KERNELS, "cpu", float8_experts_kernels},
              {CT_OP, "nvfp4_scale", &float8_op_nvfp4_scale},
              {CT_OP, "nvfp4_quantise", &float8_op_nvfp4_quantise},
              {CT_OP, "float8.hadamard", &float8_op_hadamard},
              {CT_OP, "linear_nvfp4", &float8_op_nvfp4_linear},
              {CT_OP, "linear_nvfp4_dx", &float8_op_nvfp4_dx},
              {CT_OP, "linear_nvfp4_dw", &float8_op_nvfp4_dw},
              {CT_KERNELS, "cpu", float8_nvfp4_kernels},
              {CT_TRANSFORM, "float8.experts", &experts}));
