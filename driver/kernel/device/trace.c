// SPDX-License-Identifier: GPL-2.0
/* The tracepoints themselves. */
#include "verbs/qp.h"

#define CREATE_TRACE_POINTS
#include "device/trace.h"
