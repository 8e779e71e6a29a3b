/* One rank of Open MPI in the fabric's benchmark: the counterpart of rank.py, without Python. The benchmark compiles
 * it with mpicc where Open MPI is installed.
 *
 *   mpi_rank SOCKET CPUS    CPUS: one per rank, as 0,1,2; or - to leave the ranks where they are
 */
#define _GNU_SOURCE
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <signal.h>
#include <sys/prctl.h>
#endif

typedef struct task {
  char op[32];
  char dtype[32];
  long long count;
  int samples;
} task;

static int rank, ranks;

static void die(const char *what) {
  fprintf(stderr, "rank %d: %s\n", rank, what);
  MPI_Abort(MPI_COMM_WORLD, 1);
  exit(1);
}

static void pin(const char *cpus) {
#ifdef __linux__
  char *rest = NULL;
  long cpu = strtol(cpus, &rest, 10);
  for (int i = 0; i < rank && *rest == ','; ++i) cpu = strtol(rest + 1, &rest, 10);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((int)cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) die("cannot pin itself to a CPU");
#else
  (void)cpus;
#endif
}

static int reach(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) die("cannot reach the benchmark");
  return fd;
}

/* The 16-bit floats are only moved, never reduced: MPI has no such types. */
static MPI_Datatype find_type(const char *name) {
  if (strcmp(name, "float64") == 0) return MPI_DOUBLE;
  if (strcmp(name, "float32") == 0) return MPI_FLOAT;
  if (strcmp(name, "bfloat16") == 0 || strcmp(name, "float16") == 0) return MPI_UINT16_T;
  if (strcmp(name, "int8") == 0) return MPI_INT8_T;
  if (strcmp(name, "uint8") == 0) return MPI_UINT8_T;
  if (strcmp(name, "int32") == 0) return MPI_INT32_T;
  if (strcmp(name, "int64") == 0) return MPI_INT64_T;
  if (strcmp(name, "bool") == 0) return MPI_C_BOOL;
  return MPI_DATATYPE_NULL;
}

/* At least `bytes` of zeros, kept from task to task. */
static void *buffer(int which, size_t bytes) {
  static void *memory[2];
  static size_t size[2];
  if (size[which] < bytes || size[which] > 4 * bytes + 4096) {
    free(memory[which]);
    memory[which] = malloc(bytes > 0 ? bytes : 1);
    if (memory[which] == NULL) die("out of memory");
    memset(memory[which], 0, bytes);
    size[which] = bytes;
  }
  return memory[which];
}

static void exchange(void *x, int n, MPI_Datatype type, int sends) {
  if (sends) {
    MPI_Send(x, n, type, 1 - rank, 0, MPI_COMM_WORLD);
  } else {
    MPI_Recv(x, n, type, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
}

/* The calls of one sample; their number, or 0 for an unknown operation. See operations.py for what a sample is. */
static int sample(const char *op, void *x, void *y, int n, MPI_Datatype type) {
  const MPI_Comm all = MPI_COMM_WORLD;
  const MPI_Op sum = type == MPI_C_BOOL ? MPI_LOR : MPI_SUM;
  if (strcmp(op, "all_reduce") == 0) {
    MPI_Allreduce(MPI_IN_PLACE, x, n, type, sum, all);
  } else if (strcmp(op, "all_gather") == 0) {
    MPI_Allgather(x, n, type, y, n, type, all);
  } else if (strcmp(op, "reduce_scatter") == 0) {
    MPI_Reduce_scatter_block(x, y, n, type, sum, all);
  } else if (strcmp(op, "all_to_all") == 0) {
    MPI_Alltoall(x, n, type, y, n, type, all);
  } else if (strcmp(op, "barrier") == 0) {
    MPI_Barrier(all);
  } else if (strcmp(op, "send_recv") == 0) {
    if (rank < 2) exchange(x, n, type, rank == 0);
    if (rank < 2) exchange(x, n, type, rank == 1);
    return 2;
  } else {
    for (int root = 0; root < ranks; ++root) {
      if (strcmp(op, "broadcast") == 0) {
        MPI_Bcast(x, n, type, root, all);
      } else if (strcmp(op, "reduce") == 0) {
        MPI_Reduce(rank == root ? MPI_IN_PLACE : x, x, n, type, sum, root, all);
      } else if (strcmp(op, "gather") == 0) {
        MPI_Gather(x, n, type, y, n, type, root, all);
      } else if (strcmp(op, "scatter") == 0) {
        MPI_Scatter(x, n, type, y, n, type, root, all);
      } else {
        return 0;
      }
    }
    return ranks;
  }
  return 1;
}

static int divides(const char *op) {
  return strcmp(op, "all_gather") == 0 || strcmp(op, "reduce_scatter") == 0 || strcmp(op, "all_to_all") == 0 ||
         strcmp(op, "gather") == 0 || strcmp(op, "scatter") == 0;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static void play(const task *t, FILE *out) {
  const MPI_Datatype type = find_type(t->dtype);
  int size = 0;
  if (type == MPI_DATATYPE_NULL || t->count > INT_MAX) {
    fprintf(out, "error %lld of %s is beyond what MPI can count or name\n", t->count, t->dtype);
    return;
  }
  MPI_Type_size(type, &size);
  const size_t bytes = (size_t)t->count * (size_t)size * (size_t)(divides(t->op) ? ranks : 1);
  void *const x = buffer(0, bytes);
  void *const y = buffer(1, divides(t->op) ? bytes : 0);
  double *const times = malloc((size_t)t->samples * sizeof *times);
  if (times == NULL) die("out of memory");
  for (int i = 0; i < t->samples; ++i) {
    const double begin = now();
    const int calls = sample(t->op, x, y, (int)t->count, type);
    times[i] = (now() - begin) / (calls > 0 ? calls : 1);
    if (calls == 0) {
      fprintf(out, "error there is no operation %s\n", t->op);
      free(times);
      return;
    }
  }
  fputs("ok", out);
  for (int i = 0; rank == 0 && i < t->samples; ++i) fprintf(out, " %.3f", times[i]);
  fputc('\n', out);
  free(times);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 3) die("usage: mpi_rank SOCKET CPUS");
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* without its mpirun a rank would spin for ever */
#endif
  if (strcmp(argv[2], "-") != 0) pin(argv[2]);
  const int fd = reach(argv[1]);
  FILE *const in = fdopen(fd, "r");
  FILE *const out = fdopen(dup(fd), "w");
  if (in == NULL || out == NULL) die("cannot talk to the benchmark");
  fprintf(out, "rank %d\n", rank);
  fflush(out);
  char line[256];
  task t;
  while (fgets(line, sizeof line, in) != NULL) {
    if (sscanf(line, "%31s %lld %31s %d", t.op, &t.count, t.dtype, &t.samples) != 4) die("cannot read the task");
    play(&t, out);
    fflush(out);
  }
  /* Tells mpirun that the end is meant. */
  MPI_Finalize();
  return 0;
}
