// Our declarations of NCCL's interface against its own headers. All of it is checked while compiling: built where
// FERRULE_NCCL_HEADERS names the folder plugins/net/example/nccl of NCCL's repository.
#include "nccl/abi.h"

#include "net.h"  // NCCL's

namespace {

using namespace ferrule::nccl;

#define SAME(ours, member, theirs, name)                            \
  static_assert(offsetof(ours, member) == offsetof(theirs, name) && \
                sizeof(static_cast<ours*>(nullptr)->member) == sizeof(static_cast<theirs*>(nullptr)->name))

#define SAME_PROPERTIES(ours, at, theirs)                 \
  static_assert(sizeof(ours) == sizeof(theirs));          \
  SAME(ours, at name, theirs, name);                      \
  SAME(ours, at pci_path, theirs, pciPath);               \
  SAME(ours, at guid, theirs, guid);                      \
  SAME(ours, at pointers, theirs, ptrSupport);            \
  SAME(ours, at registers_globally, theirs, regIsGlobal); \
  SAME(ours, at speed, theirs, speed);                    \
  SAME(ours, at port, theirs, port);                      \
  SAME(ours, at latency, theirs, latency);                \
  SAME(ours, at max_comms, theirs, maxComms);             \
  SAME(ours, at max_receives, theirs, maxRecvs);          \
  SAME(ours, at device_type, theirs, netDeviceType);      \
  SAME(ours, at device_version, theirs, netDeviceVersion)

#define SAME_NEWER(ours, at, theirs)                      \
  SAME_PROPERTIES(ours, at, theirs);                      \
  SAME(ours, at force_flush, theirs, forceFlush);         \
  SAME(ours, at members.count, theirs, vProps.ndevs);     \
  SAME(ours, at members.members, theirs, vProps.devs);    \
  SAME(ours, at max_point_to_point, theirs, maxP2pBytes); \
  SAME(ours, at max_collective, theirs, maxCollBytes)

SAME_PROPERTIES(PropertiesV8, , ncclNetProperties_v8_t);
SAME_NEWER(PropertiesV9, , ncclNetProperties_v9_t);
SAME_NEWER(PropertiesV9, , ncclNetProperties_v10_t);
SAME_NEWER(PropertiesV11, common., ncclNetProperties_v11_t);
SAME(PropertiesV11, max_multi_request, ncclNetProperties_v11_t, maxMultiRequestSize);
SAME_NEWER(PropertiesV12, common., ncclNetProperties_v12_t);
SAME(PropertiesV12, max_multi_request, ncclNetProperties_v12_t, maxMultiRequestSize);
SAME(PropertiesV12, rail_id, ncclNetProperties_v12_t, railId);
SAME(PropertiesV12, plane_id, ncclNetProperties_v12_t, planeId);

#define SAME_TABLE(ours, theirs)                        \
  static_assert(sizeof(ours) == sizeof(theirs));        \
  SAME(ours, name, theirs, name);                       \
  SAME(ours, init, theirs, init);                       \
  SAME(ours, devices, theirs, devices);                 \
  SAME(ours, properties, theirs, getProperties);        \
  SAME(ours, listen, theirs, listen);                   \
  SAME(ours, connect, theirs, connect);                 \
  SAME(ours, accept, theirs, accept);                   \
  SAME(ours, register_memory, theirs, regMr);           \
  SAME(ours, register_dmabuf, theirs, regMrDmaBuf);     \
  SAME(ours, unregister, theirs, deregMr);              \
  SAME(ours, send, theirs, isend);                      \
  SAME(ours, receive, theirs, irecv);                   \
  SAME(ours, flush, theirs, iflush);                    \
  SAME(ours, test, theirs, test);                       \
  SAME(ours, close_send, theirs, closeSend);            \
  SAME(ours, close_receive, theirs, closeRecv);         \
  SAME(ours, close_listen, theirs, closeListen);        \
  SAME(ours, device_registration, theirs, getDeviceMr); \
  SAME(ours, consumed, theirs, irecvConsumed)

SAME_TABLE(NetV8, ncclNet_v8_t);
SAME_TABLE(NetV9, ncclNet_v9_t);
SAME(NetV9, make_virtual, ncclNet_v9_t, makeVDevice);
SAME_TABLE(NetV10, ncclNet_v10_t);
SAME(NetV10, make_virtual, ncclNet_v10_t, makeVDevice);
SAME_TABLE(NetV11, ncclNet_v11_t);
SAME(NetV11, make_virtual, ncclNet_v11_t, makeVDevice);
SAME(NetV11, finalize, ncclNet_v11_t, finalize);
SAME(NetV11, set_attributes, ncclNet_v11_t, setNetAttr);
SAME_TABLE(NetV12, ncclNet_v12_t);
SAME(NetV12, make_virtual, ncclNet_v12_t, makeVDevice);
SAME(NetV12, finalize, ncclNet_v12_t, finalize);
SAME(NetV12, set_attributes, ncclNet_v12_t, setNetAttr);

static_assert(kSuccess == static_cast<int>(ncclSuccess) && kSystemError == static_cast<int>(ncclSystemError) &&
              kInternalError == static_cast<int>(ncclInternalError) &&
              kInvalidArgument == static_cast<int>(ncclInvalidArgument) &&
              kInvalidUsage == static_cast<int>(ncclInvalidUsage) && kRemoteError == static_cast<int>(ncclRemoteError));
static_assert(kLogWarn == static_cast<int>(NCCL_LOG_WARN) && kLogInfo == static_cast<int>(NCCL_LOG_INFO) &&
              kLogInit == NCCL_INIT && kLogNet == NCCL_NET);
static_assert(kHandleBytes == NCCL_NET_HANDLE_MAXSIZE && kMaxRequests == NCCL_NET_MAX_REQUESTS &&
              kPointerHost == NCCL_PTR_HOST && kPointerDmabuf == NCCL_PTR_DMABUF &&
              kDeviceHost == NCCL_NET_DEVICE_HOST && kNoId == NCCL_NET_ID_UNDEF);

}  // namespace

int main() { return 0; }
