/* Ferrule's native data plane: the only C ABI.
 *
 * Whoever uses it has already found the peers and proved who they are: it makes a channel per peer and stream from
 * connected sockets (and, for ranks of one host, a mapped segment), and a group from the channels. Everything here
 * only moves and reduces bytes.
 *
 * A group has two streams, each with channels of its own: collectives, and messages (send and recv). On each stream one
 * thread at a time may run operations (a second one gets FERRULE_BUSY); operations that were started go on by
 * themselves, the collectives in the order of their start. ferrule_group_abort may be called from any thread at any
 * time. All pointers are host memory. Sizes are in bytes unless they are called count (elements). Timeouts are in
 * seconds.
 */
#ifndef FERRULE_FERRULE_H
#define FERRULE_FERRULE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FERRULE_ABI_VERSION 4
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
  FERRULE_SYSTEM = 8,      /* the operating system refused something */
  FERRULE_PENDING = 9      /* the work is not done yet; it goes on */
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

typedef enum ferrule_stream { FERRULE_COLLECTIVES = 0, FERRULE_MESSAGES = 1 } ferrule_stream;

/* How a collective moves data over channels. Ranks that all share one segment have their own ways. */
typedef enum ferrule_algorithm {
  FERRULE_ONCE = 0,     /* everybody sends all to everybody */
  FERRULE_PIECES = 1,   /* everybody reduces one piece and sends the result to everybody */
  FERRULE_DOUBLING = 2, /* log2(size) rounds, what is known doubles in each */
  FERRULE_TREE = 3,     /* along a spanning tree, pipelined */
  FERRULE_RING = 4      /* around a ring, both ways at once */
} ferrule_algorithm;

typedef struct ferrule_group ferrule_group;
typedef struct ferrule_segment ferrule_segment;
typedef struct ferrule_channel ferrule_channel;
typedef struct ferrule_work ferrule_work;
typedef struct ferrule_verbs_endpoint ferrule_verbs_endpoint;
typedef struct ferrule_heartbeat ferrule_heartbeat;
typedef struct ferrule_relay ferrule_relay;

/* Why a group is closed: the first cause, kept for good. */
typedef struct ferrule_failure {
  ferrule_status status;
  int rank;            /* the rank at fault, or -1 */
  double seconds;      /* how long the operation had taken when it failed */
  const char *message; /* valid until the group is destroyed */
} ferrule_failure;

/* Whom a channel joins. The socket is the channel's as soon as it is made. */
typedef struct ferrule_ends {
  int rank;
  int peer;
  int fd; /* a connected stream socket */
  uint64_t epoch;
} ferrule_ends;

/* Up to this many bytes (of the whole array), this operation uses this algorithm. */
typedef struct ferrule_decision {
  int op; /* ferrule_op */
  uint64_t up_to;
  ferrule_algorithm algorithm;
} ferrule_decision;

typedef struct ferrule_group_options {
  uint32_t abi_version; /* FERRULE_ABI_VERSION */
  int rank;
  int size;
  uint64_t epoch; /* the same on all ranks, different for every group ever made */
  /* Per stream size channels, NULL for this rank; owned by the group from here on. */
  ferrule_channel *const *collectives;
  ferrule_channel *const *messages;
  const int *local_index;   /* size indices into the segment, -1 for ranks that have not mapped it; or NULL */
  ferrule_segment *segment; /* owned by the group from here on; or NULL */
  double spin_us;           /* busy-wait this long before yielding */
  double yield_us;          /* then yield the core this long before sleeping in the kernel */
  int (*interrupted)(void *context); /* asked now and then while waiting; not 0 stops the operation; or NULL */
  void *interrupted_context;
  /* The same on all ranks. Without decisions every rank talks to every other directly. Rows of one op stand in the
   * order of up_to, the last one with UINT64_MAX. */
  const ferrule_decision *decisions;
  size_t decision_count;
  const int *tree; /* size parents of a spanning tree, -1 for its root; or NULL */
  const int *ring; /* size ranks in the order of the ring; or NULL */
  ferrule_heartbeat *heartbeat; /* shared: the group keeps it alive as long as it needs it; or NULL */
  const int *heartbeat_ranks;   /* the heartbeat's ranks of the group's size ranks */
} ferrule_group_options;

/* The values stand in message headers. */
typedef enum ferrule_op {
  FERRULE_ALL_REDUCE = 1,
  FERRULE_ALL_GATHER = 2,
  FERRULE_REDUCE_SCATTER = 3,
  FERRULE_BROADCAST = 4,
  FERRULE_SEND = 5,
  FERRULE_BARRIER = 6,
  FERRULE_REDUCE = 7,
  FERRULE_GATHER = 8,
  FERRULE_SCATTER = 9,
  FERRULE_ALL_TO_ALL = 10,
  FERRULE_RECV = 11
} ferrule_op;

#define FERRULE_ANY_RANK (-1) /* as the peer of recv: whichever message comes first, from all ranks in turn */

/* One operation. count is what one rank gives (or gets, for reduce_scatter and scatter), in elements.
 *
 *   all_reduce      count of in -> count of out; in may be out, or NULL for the same
 *   all_gather      count of in -> size * count of out; in may be this rank's place in out
 *   reduce_scatter  size * count of in (unchanged) -> count of out, which must not overlap
 *   broadcast       count of out, from root to all
 *   reduce          count of in -> count of out at the root (in may be out); elsewhere in is unchanged, out unused
 *   gather          count of in -> size * count of out at the root
 *   scatter         size * count of in at the root -> count of out
 *   all_to_all      size parts of in -> size parts of out, in the order of ranks, not overlapping; count elements
 *                   each, or send_counts[rank] and recv_counts[rank] of them
 *   send            count of in to the peer; returns when the data are buffered, and at least 256 KiB per peer fit
 *                   before the receiver takes them
 *   recv            count of out from the peer
 *   barrier         nothing */
typedef struct ferrule_operation {
  ferrule_op op;
  ferrule_dtype dtype;
  ferrule_reduction reduction;
  int root; /* or the peer of send and recv */
  const void *in;
  void *out;
  size_t count;
  const size_t *send_counts; /* size of them; or NULL */
  const size_t *recv_counts;
  int quantized; /* all_reduce of f32, bf16, f16 by sum or avg: send 8-bit blocks instead of numbers */
} ferrule_operation;

typedef enum ferrule_presence {
  FERRULE_SELF = 0,
  FERRULE_ABSENT = 1, /* not connected yet */
  FERRULE_ALIVE = 2,
  FERRULE_LEFT = 3, /* said goodbye */
  FERRULE_LOST = 4  /* died, or silent for longer than the limit */
} ferrule_presence;

#define FERRULE_MAX_RAILS 64

/* What a heartbeat knows of one peer. */
typedef struct ferrule_peer_health {
  ferrule_presence presence;
  double silent;        /* seconds since it was last heard; infinite when it never was */
  int rails;            /* how many there ever were */
  uint64_t rails_alive; /* a bit for each */
  char words[256];      /* of one that is lost: why, such as "died: connection reset on thunderbolt0" */
} ferrule_peer_health;

/* Watches the ranks of a job (all that met at one rendezvous) over connections of its own, from a thread of its own;
 * no thread here takes signals. Silence for `limit` seconds ends every group that the silent rank is in, with
 * FERRULE_PEER_LOST, on all ranks; so does the end of all connections to it, at once. With limit 0 only the latter
 * does. A group that ends on one rank, for whatever reason, is ended with that reason on all of them.
 *
 * Time that this process spent without a processor (a busy machine, SIGSTOP) counts for nobody's silence. The last
 * group that is closed, and close, tell the peers that this rank may go. */
ferrule_status ferrule_heartbeat_create(int rank, int size, uint64_t epoch, double interval, double limit,
                                        ferrule_heartbeat **out, char *error, size_t error_size);
/* A connected, authenticated stream socket to a peer becomes its rail (below FERRULE_MAX_RAILS), at any time, also in
 * the place of an earlier one. `via`: the rank that relays it, or -1. The socket is the heartbeat's from here on. */
ferrule_status ferrule_heartbeat_add(ferrule_heartbeat *heartbeat, int peer, int rail, int fd, const char *link,
                                     int via);
ferrule_status ferrule_heartbeat_peer(const ferrule_heartbeat *heartbeat, int peer, ferrule_peer_health *out);
/* Says goodbye, and stops watching. */
void ferrule_heartbeat_close(ferrule_heartbeat *heartbeat);
/* Closes it as soon as no group uses it any more. */
void ferrule_heartbeat_destroy(ferrule_heartbeat *heartbeat);

/* Carries bytes for ranks that share no link, on a thread of its own, and understands nothing of them. */
ferrule_status ferrule_relay_create(ferrule_relay **out, char *error, size_t error_size);
/* Forward between two connected stream sockets, both ways, until both have ended. They are the relay's from here on,
 * also on failure. */
ferrule_status ferrule_relay_add(ferrule_relay *relay, int fd_a, int fd_b, char *error, size_t error_size);
/* Gives those who still talk up to two seconds to end, and cuts them off. */
void ferrule_relay_close(ferrule_relay *relay);
/* Closes it too. */
void ferrule_relay_destroy(ferrule_relay *relay);

/* A shared-memory segment for the ranks of one host. create makes it, for this user alone; open maps the one at
 * `place` if it has the token. On failure they write a reason to error and return FERRULE_SYSTEM. */
ferrule_status ferrule_segment_create(const uint8_t *token, int ranks, ferrule_segment **out, char *error,
                                      size_t error_size);
ferrule_status ferrule_segment_open(const char *place, const uint8_t *token, int ranks, ferrule_segment **out,
                                    char *error, size_t error_size);
/* Where the others open it, until its maker hides it, as soon as all have. On Linux that is a descriptor of the maker,
 * so that nothing is left behind whoever dies when; elsewhere a name, until then. */
const char *ferrule_segment_place(const ferrule_segment *segment);
void ferrule_segment_hide(ferrule_segment *segment);
void ferrule_segment_destroy(ferrule_segment *segment);

/* Data go over the socket. */
ferrule_channel *ferrule_channel_tcp(const ferrule_ends *ends);
/* Data go through the segment, which must outlive the channel; the socket wakes the peer and tells of its death. */
ferrule_channel *ferrule_channel_shm(const ferrule_ends *ends, ferrule_segment *segment, ferrule_stream stream,
                                     int my_index, int peer_index);
/* Data go through a queue pair that both ends have proved; the socket tells of the peer's death. The endpoint is the
 * channel's from here on. */
ferrule_channel *ferrule_channel_verbs(const ferrule_ends *ends, ferrule_verbs_endpoint *endpoint);
/* Data go over several sockets, each on a path of its own, and over the others when one ends. Both ends number the
 * rails alike. fds: a connected socket per rail, -1 for one that is missing yet; they are the channel's, ends->fd is
 * not used. best: the rail with the lowest latency. A rail on whose wire nothing moves for stall_seconds, while
 * another one moves, is given up. NULL when an argument is out of range. */
ferrule_channel *ferrule_channel_rails(const ferrule_ends *ends, const int *fds, size_t count, int best,
                                       double stall_seconds);
/* "shm", "tcp", "verbs" ... */
const char *ferrule_channel_transport(const ferrule_channel *channel);
/* Closes the socket. Only for channels that no group owns. */
void ferrule_channel_destroy(ferrule_channel *channel);

/* RDMA. Each end opens an endpoint, tells the other its description over a connection that both trust, joins it to the
 * other's, and when both have done that, proves that it works. Each step needs the other end's former one. On failure
 * they write a reason to error and return FERRULE_SYSTEM; an endpoint is of no use then. */
#define FERRULE_VERBS_DESCRIPTION_BYTES 48

typedef enum ferrule_verbs_type { FERRULE_VERBS_RC = 0, FERRULE_VERBS_UC = 1 } ferrule_verbs_type;

typedef struct ferrule_verbs_gid {
  int index;
  uint8_t raw[16];
} ferrule_verbs_gid;

/* A port of an RDMA device. If there is a problem, only that and the name are set. */
typedef struct ferrule_verbs_port {
  const char *device;
  const char *problem; /* or NULL */
  int port;
  int active;
  int infiniband; /* the link layer; otherwise Ethernet */
  int iwarp;
  int mtu;
  int lid;
  uint32_t vendor;
  int max_qp;
  int max_mr;
  int max_qp_wr;
  const ferrule_verbs_gid *gids; /* those that are set */
  size_t gid_count;
} ferrule_verbs_port;

typedef struct ferrule_verbs_options {
  const char *device;
  int port;
  int gid_index; /* unused with an address */
  ferrule_verbs_type type;
  ferrule_stream stream;
  const char *address; /* iWARP: the IP address of this end; else NULL */
  int listens;         /* iWARP: of the two ends, exactly one does */
} ferrule_verbs_options;

ferrule_status ferrule_verbs_ports(void (*visit)(void *context, const ferrule_verbs_port *port), void *context,
                                   char *error, size_t error_size);
ferrule_status ferrule_verbs_open(const ferrule_verbs_options *options, ferrule_verbs_endpoint **out, char *error,
                                  size_t error_size);
/* FERRULE_VERBS_DESCRIPTION_BYTES of them. */
void ferrule_verbs_describe(const ferrule_verbs_endpoint *endpoint, uint8_t *out);
ferrule_status ferrule_verbs_join(ferrule_verbs_endpoint *endpoint, const uint8_t *other, double timeout, char *error,
                                  size_t error_size);
ferrule_status ferrule_verbs_prove(ferrule_verbs_endpoint *endpoint, double timeout, char *error, size_t error_size);
void ferrule_verbs_close(ferrule_verbs_endpoint *endpoint);

/* On failure the channels and the segment stay the caller's. */
ferrule_status ferrule_group_create(const ferrule_group_options *options, ferrule_group **out, char *error,
                                    size_t error_size);
/* Finishes what was started, says goodbye to the peers and closes the sockets. FERRULE_BUSY while another thread
 * runs an operation. */
ferrule_status ferrule_group_close(ferrule_group *group);
/* Ends whatever the group does, here and on every peer. */
void ferrule_group_abort(ferrule_group *group, const char *reason);
void ferrule_group_failure(const ferrule_group *group, ferrule_failure *out);

/* One rail of a channel; the counts are those of all its sockets so far, with the headers of frames. */
typedef struct ferrule_rail {
  int alive;
  uint64_t bytes_sent;
  uint64_t bytes_received;
  uint32_t deaths;
} ferrule_rail;
/* Give a channel a fresh socket for one of its rails, in the place of the old one; the peer must get the other end.
 * From any thread, also while operations run. FERRULE_INVALID: the group is closed or has no such rail, and the
 * socket stays the caller's. */
ferrule_status ferrule_group_add_rail(ferrule_group *group, ferrule_stream stream, int peer, int rail, int fd);
/* How many rails the channel to that peer has (0: it is of another kind); the first `size` of them go to out. */
size_t ferrule_group_rails(const ferrule_group *group, ferrule_stream stream, int peer, ferrule_rail *out, size_t size);

/* Closes and frees. The caller makes sure that no operation runs. */
void ferrule_group_destroy(ferrule_group *group);

size_t ferrule_dtype_size(ferrule_dtype dtype); /* 0 when there is no such dtype */

/* Run one operation, or several of one stream that all ranks run together (sends and receives at once, reductions of
 * one kind as one message). */
ferrule_status ferrule_run(ferrule_group *group, const ferrule_operation *operations, size_t count, double timeout);
/* The same without waiting: the arrays must stay until the work is done. */
ferrule_status ferrule_start(ferrule_group *group, const ferrule_operation *operations, size_t count, double timeout,
                             ferrule_work **work);
/* How it ended, or FERRULE_PENDING. */
ferrule_status ferrule_work_wait(ferrule_work *work, double timeout);
/* Have done(context) called when it is done, by the thread that ends it, or at once. */
void ferrule_work_then(ferrule_work *work, void (*done)(void *context), void *context);
/* The rank from which a recv from FERRULE_ANY_RANK got its message; -1 until then. */
int ferrule_work_source(ferrule_work *work);
/* The work itself goes on. */
void ferrule_work_destroy(ferrule_work *work);

/* Emulated cables, for tests and the lab (Linux only): threads that carry packets between sockets as slowly and badly
 * as they are told. Everything acts at once, on what has not begun to be sent. */
typedef struct ferrule_shaper ferrule_shaper;

typedef enum ferrule_flow {
  FERRULE_FLOW_MOVES = 0,
  FERRULE_FLOW_STALLED = 1, /* nothing moves; what the queue has no room for is lost */
  FERRULE_FLOW_MUTE = 2,    /* all that this end sends is lost */
  FERRULE_FLOW_DARK = 3     /* and, on a switch, all that is sent to it */
} ferrule_flow;

/* What happens to what one end of a cable sends. Times are in seconds, chances from 0 to 1 for each frame. */
typedef struct ferrule_shape {
  double rate; /* bits per second on the wire; 0: no limit */
  double delay;
  double jitter; /* the delay is up to so much shorter or longer; packets stay in order */
  double loss;
  double corrupt; /* one bit, behind the addresses */
  double duplicate;
  double reorder;    /* overtaken by the next ones */
  double collapse;   /* what both directions together get under load from both, in parts of rate; 0: each all of it */
  uint64_t queue;    /* bytes that may wait for their turn; 0: no limit */
  uint32_t overhead; /* bytes on the wire for each frame beside its own */
  ferrule_flow flow;
} ferrule_shape;

/* What became of the frames that one end sent. */
typedef struct ferrule_shape_counters {
  uint64_t frames, bytes;
  uint64_t delivered_frames, delivered_bytes;
  uint64_t overflowed; /* lost: the queue was full */
  uint64_t lost;       /* by chance */
  uint64_t cut;        /* because nothing passed at the time */
  uint64_t corrupted, duplicated, reordered;
  uint64_t queued_bytes; /* that wait now */
  uint64_t missed;       /* packets that came quicker than they were taken, and are in no other number */
  uint64_t unsent;       /* packets for this end that its socket did not take */
  double latest;         /* how many seconds after its moment a packet came out, at most */
} ferrule_shape_counters;

/* `threads`: 0 for as many as leave the hosts half of the processors. */
ferrule_status ferrule_shaper_create(int threads, ferrule_shaper **out, char *error, size_t error_size);
/* Join the ends of a cable, or of a switch with more than two; the descriptors are the shaper's from here on, also on
 * failure. They are packet sockets with PACKET_VNET_HDR, or other sockets that give and take one packet at a time in
 * that form. All that chance decides follows from the seed and the order of packets. */
ferrule_status ferrule_shaper_join(ferrule_shaper *shaper, const int *fds, int ends, uint64_t seed, int *cable,
                                   char *error, size_t error_size);
ferrule_status ferrule_shaper_part(ferrule_shaper *shaper, int cable, char *error, size_t error_size);
ferrule_status ferrule_shaper_set(ferrule_shaper *shaper, int cable, int end, const ferrule_shape *shape, char *error,
                                  size_t error_size);
/* All that waits or is under way is lost. */
ferrule_status ferrule_shaper_clear(ferrule_shaper *shaper, int cable, char *error, size_t error_size);
ferrule_status ferrule_shaper_read(ferrule_shaper *shaper, int cable, int end, ferrule_shape_counters *out,
                                   char *error, size_t error_size);
void ferrule_shaper_destroy(ferrule_shaper *shaper);

#ifdef __cplusplus
}
#endif
#endif
