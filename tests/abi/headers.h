/*
 * All public headers for authors of plugins.
 */
#ifndef TESTS_ABI_HEADERS_H
#define TESTS_ABI_HEADERS_H

#include <ctitan/arena.h>
#include <ctitan/base.h>
#include <ctitan/calling.h>
#include <ctitan/clock.h>
#include <ctitan/collective.h>
#include <ctitan/comm.h>
#include <ctitan/config.h>
#include <ctitan/core_ops.h>
#include <ctitan/device/comm.h>
#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/graph.h>
#include <ctitan/hook.h>
#include <ctitan/input.h>
#include <ctitan/lib/chat.h>
#include <ctitan/lib/compiler.h>
#include <ctitan/lib/cpu.h>
#include <ctitan/lib/cuda.h>
#include <ctitan/lib/decoder.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/jinja.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/launch.h>
#include <ctitan/lib/machine.h>
#include <ctitan/lib/measure.h>
#include <ctitan/lib/mixture.h>
#include <ctitan/lib/numa.h>
#include <ctitan/lib/ops.h>
#include <ctitan/lib/outlet.h>
#include <ctitan/lib/patterns.h>
#include <ctitan/lib/pipeline.h>
#include <ctitan/lib/pointwise.h>
#include <ctitan/lib/rates.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/stored.h>
#include <ctitan/lib/terminal.h>
#include <ctitan/log.h>
#include <ctitan/mesh.h>
#include <ctitan/model.h>
#include <ctitan/number.h>
#include <ctitan/objective.h>
#include <ctitan/op.h>
#include <ctitan/op_author.h>
#include <ctitan/option.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>
#include <ctitan/plugins.h>
#include <ctitan/program.h>
#include <ctitan/recipe.h>
#include <ctitan/rng.h>
#include <ctitan/rule.h>
#include <ctitan/run.h>
#include <ctitan/sharding.h>
#include <ctitan/state.h>
#include <ctitan/tensor.h>
#include <ctitan/text.h>
#include <ctitan/train.h>
#include <ctitan/verb.h>

#endif
