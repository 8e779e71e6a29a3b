// Proofs that the other process has the key: HMAC-SHA256 of OpenSSL's libcrypto, opened at run time.
#pragma once

#include <span>

#include "nccl/join/wire.h"

namespace ferrule::nccl {

using Key = std::span<const std::byte>;

// From the kernel.
void fill_random(std::span<std::uint8_t> into);
Id random_id();

enum class Role { client, server };
// Throws Error where there is no libcrypto.
Mac proof_of(Key key, Role role, const Hello& hello, const Challenge& challenge);
// In constant time.
bool equal(const Mac& one, const Mac& other);

}  // namespace ferrule::nccl
