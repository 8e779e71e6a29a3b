/* Ferrule's native data plane: the only C ABI.
 *
 * Whoever uses it has already found the peers and proved who they are: it hands over one connected stream socket
 * per peer and, for ranks of one host, a mapped segment. Everything here only moves and reduces bytes.
 *
 * Calls on one group must come from one thread at a time (a second one gets FERRULE_BUSY); only
 * ferrule_group_abort may be called from any thread at any time. All pointers are host memory. Sizes are in bytes
 * unless they are called count (elements). Timeouts are in seconds.
 */
#ifndef FERRULE_FERRULE_H
#define FERRULE_FERRULE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FERRULE_ABI_VERSION 1
#define FERRULE_TOKEN_BYTES 16

typedef enum ferrule_status {
  FERRULE_OK = 0,
  FERRULE_PEER_LOST = 1,   /* a peer's connection ended without a goodbye, or it left while it was needed */
  FERRULE_TIMEOUT = 2,     /* the deadline passed although every peer seems alive */
  FERRULE_MISMATCH = 3,    /* the ranks called different operations */
  FERRULE_INVALID = 4,     /* an argument cannot be used; the group lives on */
  FERRULE_ABORTED = 5,     /* the group was aborted or closed on this rank, or given up by another */
  FERRULE_INTERRUPTED = 6, /* the interrupt hook asked to stop */
  FERRULE_BUSY = 7,        /* another thread is inside an operation of this group; the group lives on */
  FERRULE_SYSTEM = 8       /* the operating system refused something */
} ferrule_status;

typedef enum ferrule_dtype {
  FERRULE_F64 = 0,
  FERRULE_F32 = 1,
  FERRULE_BF16 = 2,
  FERRULE_F16 = 3,
  FERRULE_I8 = 4,
  FERRULE_U8 = 5,
  FERRULE_I32 = 6,
  FERRULE_I64 = 7,
  FERRULE_BOOL = 8
} ferrule_dtype;

/* Every reduction takes the ranks in the order 0, 1, 2...; bf16 and f16 accumulate in f32 and round once.
 * Integers wrap around; AVG of integers divides the sum towards zero. BOOL: SUM and MAX are or, PROD and MIN are
 * and, AVG has no meaning and is FERRULE_INVALID. MIN and MAX hand a NaN on. */
typedef enum ferrule_reduction {
  FERRULE_SUM = 0,
  FERRULE_PROD = 1,
  FERRULE_MIN = 2,
  FERRULE_MAX = 3,
  FERRULE_AVG = 4
} ferrule_reduction;

typedef struct ferrule_group ferrule_group;
typedef struct ferrule_segment ferrule_segment;

/* Why a group is closed: the first cause, kept for good. */
typedef struct ferrule_failure {
  ferrule_status status;
  int rank;            /* the rank at fault, or -1 */
  double seconds;      /* how long the operation had taken when it failed */
  const char *message; /* valid until the group is destroyed */
} ferrule_failure;

typedef struct ferrule_group_options {
  uint32_t abi_version; /* FERRULE_ABI_VERSION */
  int rank;
  int size;
  uint64_t epoch;         /* the same on all ranks, different for every group ever made */
  const int *fds;         /* size connected stream sockets, -1 for this rank; owned by the group from here on */
  const int *local_index; /* size indices into the segment, -1 for ranks that have not mapped it; or NULL */
  ferrule_segment *segment; /* owned by the group from here on; or NULL */
  double spin_us;           /* busy-wait this long before yielding */
  double yield_us;          /* then yield the core this long before sleeping in the kernel */
  int (*interrupted)(void *context); /* asked now and then while waiting; not 0 stops the operation; or NULL */
  void *interrupted_context;
} ferrule_group_options;

/* A shared-memory segment for the ranks of one host. create makes it (mode 0600, must not exist), open maps one
 * whose token matches. On failure they write a reason to error and return FERRULE_SYSTEM. The name should be
 * unlinked as soon as all have mapped it. */
ferrule_status ferrule_segment_create(const char *name, const uint8_t *token, int ranks, ferrule_segment **out,
                                      char *error, size_t error_size);
ferrule_status ferrule_segment_open(const char *name, const uint8_t *token, int ranks, ferrule_segment **out,
                                    char *error, size_t error_size);
ferrule_status ferrule_segment_unlink(const char *name);
void ferrule_segment_destroy(ferrule_segment *segment);

/* On failure the descriptors and the segment stay the caller's. */
ferrule_status ferrule_group_create(const ferrule_group_options *options, ferrule_group **out, char *error,
                                    size_t error_size);
/* Says goodbye to the peers and closes the sockets. FERRULE_BUSY while an operation runs. */
ferrule_status ferrule_group_close(ferrule_group *group);
/* Ends whatever the group does, here and on every peer. */
void ferrule_group_abort(ferrule_group *group, const char *reason);
void ferrule_group_failure(const ferrule_group *group, ferrule_failure *out);
/* "self", "shm" or "tcp". */
const char *ferrule_group_transport(const ferrule_group *group, int peer);
/* Closes and frees. The caller makes sure that no operation runs. */
void ferrule_group_destroy(ferrule_group *group);

size_t ferrule_dtype_size(ferrule_dtype dtype); /* 0 when there is no such dtype */

ferrule_status ferrule_all_reduce(ferrule_group *group, void *data, size_t count, ferrule_dtype dtype,
                                  ferrule_reduction reduction, double timeout);
/* out holds size times count elements; in may be this rank's place in it. */
ferrule_status ferrule_all_gather(ferrule_group *group, const void *in, void *out, size_t count,
                                  ferrule_dtype dtype, double timeout);
/* in holds size times count elements and is not changed; out must not overlap it. */
ferrule_status ferrule_reduce_scatter(ferrule_group *group, const void *in, void *out, size_t count,
                                      ferrule_dtype dtype, ferrule_reduction reduction, double timeout);
ferrule_status ferrule_broadcast(ferrule_group *group, void *data, size_t count, ferrule_dtype dtype, int root,
                                 double timeout);
/* Returns when the data are buffered; at least 256 KiB per peer fit before the receiver takes them. */
ferrule_status ferrule_send(ferrule_group *group, const void *data, size_t count, ferrule_dtype dtype, int peer,
                            double timeout);
ferrule_status ferrule_recv(ferrule_group *group, void *data, size_t count, ferrule_dtype dtype, int peer,
                            double timeout);
ferrule_status ferrule_barrier(ferrule_group *group, double timeout);

#ifdef __cplusplus
}
#endif
#endif
