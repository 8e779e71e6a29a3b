#include "transports/tcp/zero_copy.h"

#include <sys/socket.h>

#if defined(__linux__) && defined(MSG_ZEROCOPY) && defined(SO_ZEROCOPY)
#include <linux/errqueue.h>
#include <netinet/in.h>

#include <cstring>

namespace ferrule {

const int ZeroCopy::kFlag = MSG_ZEROCOPY;

void ZeroCopy::enable() {
  const int on = 1;
  enabled_ = ::setsockopt(fd_, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0;  // not for Unix sockets
}

void ZeroCopy::reap() {
  while (outstanding()) {
    alignas(cmsghdr) std::byte control[128];
    msghdr message{};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (::recvmsg(fd_, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
    take(message);
  }
}

void ZeroCopy::take(const msghdr& message) {
  for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(const_cast<msghdr*>(&message), one)) {
    const bool error_queue = (one->cmsg_level == SOL_IP && one->cmsg_type == IP_RECVERR) ||
                             (one->cmsg_level == SOL_IPV6 && one->cmsg_type == IPV6_RECVERR);
    if (!error_queue || one->cmsg_len < CMSG_LEN(sizeof(sock_extended_err))) continue;
    sock_extended_err word;
    std::memcpy(&word, CMSG_DATA(one), sizeof word);
    if (word.ee_errno != 0 || word.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
    done_ += word.ee_data - word.ee_info + 1;  // a range of sends, both ends included
    if ((word.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0) enabled_ = false;
  }
}

}  // namespace ferrule

#else

namespace ferrule {

const int ZeroCopy::kFlag = 0;
void ZeroCopy::enable() {}
void ZeroCopy::reap() {}
void ZeroCopy::take(const msghdr& /*message*/) {}

}  // namespace ferrule
#endif
