// SPDX-License-Identifier: GPL-2.0
/* The tracepoints themselves. */
#include "qp.h"

#define CREATE_TRACE_POINTS
#include "trace.h"
