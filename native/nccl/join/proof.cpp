#include "nccl/join/proof.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "nccl/log.h"
#include "transports/verbs/verbs_library.h"

namespace ferrule::nccl {
namespace {

struct Crypto {
  void* const handle;
  Symbol<const void*()> sha256{handle, "EVP_sha256"};
  Symbol<unsigned char*(const void*, const void*, int, const unsigned char*, std::size_t, unsigned char*, unsigned*)>
      hmac{handle, "HMAC"};
  Symbol<int(const void*, const void*, std::size_t)> compare{handle, "CRYPTO_memcmp"};
};

Crypto load() {
  for (const char* const name : {"libcrypto.so.3", "libcrypto.so.4", "libcrypto.so.1.1"}) {
    try {
      return {open_library(name)};
    } catch (const std::runtime_error&) {
      // the next one
    }
  }
  throw Error(kSystemError,
              "OpenSSL's libcrypto.so.3 is not found, which proves to other hosts that this one has the "
              "key: install libssl3 (Debian, Ubuntu) or openssl-libs (Fedora)");
}

const Crypto& crypto() {
  static const Crypto library = load();
  return library;
}

}  // namespace

void fill_random(std::span<std::uint8_t> into) {
  while (!into.empty()) {
    const ssize_t got = ::getrandom(into.data(), into.size(), 0);
    if (got < 0 && errno != EINTR) throw Error(kSystemError, "the kernel gives no random numbers");
    if (got > 0) into = into.subspan(static_cast<std::size_t>(got));
  }
}

Id random_id() {
  Id id;
  fill_random(id);
  return id;
}

Mac proof_of(Key key, Role role, const Hello& hello, const Challenge& challenge) {
  const std::string_view label = role == Role::client ? "ferrule nccl client" : "ferrule nccl server";
  std::vector<unsigned char> said(label.size() + 1 + sizeof hello + sizeof challenge);
  std::memcpy(said.data(), label.data(), label.size());
  std::memcpy(said.data() + label.size() + 1, &hello, sizeof hello);
  std::memcpy(said.data() + label.size() + 1 + sizeof hello, &challenge, sizeof challenge);
  Mac mac{};
  unsigned size = 0;
  const Crypto& library = crypto();
  const auto* const done = library.hmac(library.sha256(), key.data(), static_cast<int>(key.size()), said.data(),
                                        said.size(), mac.data(), &size);
  if (done == nullptr || size != mac.size()) throw Error(kSystemError, "OpenSSL refuses HMAC-SHA256");
  return mac;
}

bool equal(const Mac& one, const Mac& other) { return crypto().compare(one.data(), other.data(), one.size()) == 0; }

}  // namespace ferrule::nccl
