/*
 * The device "reference": every op by its reference kernel, on plain host memory, in order. It is
 * slow, takes any dtype and needs no plugin. Tests measure everything else against it.
 */
#ifndef CT_REFERENCE_H
#define CT_REFERENCE_H

#include <ctitan/device/device.h>

extern const struct ct_device_ops ct_device_reference;

#endif
