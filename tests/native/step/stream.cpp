// Parts of a file in few slots: whatever is entered, in whatever order, is what the file holds.
#include "step/stream.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "testing.h"

using namespace ferrule;

namespace {

constexpr std::size_t kParts = 24, kMatrices = 2;

// A plain matrix of float32: `rows` of 16 numbers.
MatrixLayout layout_of(std::size_t rows) {
  MatrixLayout layout;
  layout.rows = rows;
  layout.columns = 16;
  layout.codes = Codes::f32;
  return layout;
}

struct Stored {
  int descriptor = -1;
  std::vector<std::vector<Extent>> parts;
  std::vector<std::vector<PackedMatrix>> matrices;
};

// Every byte of a matrix tells its part and its place in it. Sizes differ, and the last one takes several reads.
Stored store() {
  Stored stored;
  char name[] = "/tmp/ferrule-stream-XXXXXX";
  stored.descriptor = ::mkstemp(name);
  CHECK(stored.descriptor >= 0);
  ::unlink(name);
  std::uint64_t offset = 0;
  for (std::size_t part = 0; part < kParts; ++part) {
    stored.parts.emplace_back();
    stored.matrices.emplace_back();
    for (std::size_t i = 0; i < kMatrices; ++i) {
      const MatrixLayout layout = layout_of(part + 1 == kParts ? 80000 : 16 * (1 + (7 * part + i) % 5));
      const std::vector<char> data(layout.bytes(), static_cast<char>(kMatrices * part + i));
      CHECK(::pwrite(stored.descriptor, data.data(), data.size(), static_cast<off_t>(offset)) ==
            static_cast<ssize_t>(data.size()));
      stored.parts.back().push_back({offset, layout.bytes()});
      stored.matrices.back().push_back({layout, nullptr, nullptr});
      offset += (layout.bytes() + kDiskPage - 1) / kDiskPage * kDiskPage;
    }
  }
  CHECK(::ftruncate(stored.descriptor, static_cast<off_t>(offset)) == 0);
  return stored;
}

void bind(WeightPool& pool, Stored& stored) {
  for (std::size_t part = 0; part < kParts; ++part) {
    for (std::size_t i = 0; i < kMatrices; ++i) pool.bind(part, i, stored.matrices[part][i]);
  }
}

void check(const Stored& stored, std::size_t part) {
  for (std::size_t i = 0; i < kMatrices; ++i) {
    const PackedMatrix& matrix = stored.matrices[part][i];
    const std::uint8_t* const end = matrix.data + matrix.layout.bytes();
    CHECK(std::all_of(matrix.data, end, [&](std::uint8_t each) { return each == kMatrices * part + i; }));
  }
}

void test_cycles(Stored& stored, std::size_t slots) {
  const auto file = std::make_shared<WeightFile>(stored.descriptor, 3);
  WeightPool pool(file, stored.parts, slots, true);
  bind(pool, stored);
  std::mt19937 random(7);
  for (int step = 0; step < 60; ++step) {
    const std::size_t length = step % 4 == 3 ? random() % kParts : kParts;  // some end early
    for (std::size_t part = 0; part < length; ++part) {
      pool.enter(part, 20);
      check(stored, part);
      if (random() % 2 == 0) pool.leave();
    }
  }
}

void test_chosen(Stored& stored, std::size_t slots) {
  const auto file = std::make_shared<WeightFile>(stored.descriptor, 3);
  WeightPool pool(file, stored.parts, slots, false);
  bind(pool, stored);
  std::mt19937 random(11);
  std::uint64_t announced = 0;
  for (int step = 0; step < 300; ++step) {
    std::vector<std::size_t> needed;
    for (std::size_t part = 0; part < kParts; ++part) {
      if (part < 4 ? random() % 4 != 0 : random() % 12 == 0) needed.push_back(part);
    }
    announced += needed.size();
    pool.expect(needed);
    for (const std::size_t part : needed) {
      pool.enter(part, 20);
      check(stored, part);
    }
    pool.leave();
  }
  const StreamUse use = pool.use();
  CHECK(use.hits + use.misses == announced);
  if (slots >= 8) CHECK(use.hits > announced / 2);  // the four that are needed most stay
  if (slots == kParts) CHECK(use.misses <= kParts);
}

void test_failures(Stored& stored) {
  CHECK(::ftruncate(stored.descriptor, kDiskPage) == 0);
  const auto file = std::make_shared<WeightFile>(stored.descriptor, 2);
  WeightPool pool(file, stored.parts, 2, true);
  bind(pool, stored);
  std::string said;
  try {
    for (std::size_t part = 0; part < kParts; ++part) pool.enter(part, 20);
  } catch (const WeightsLost& lost) {
    said = lost.what();
  }
  CHECK(said.find("the file ends at byte") == 0);
}

}  // namespace

int main() {
  Stored stored = store();
  for (const std::size_t slots : {1, 2, 3, 8, 24}) {
    test_cycles(stored, slots);
    test_chosen(stored, slots);
  }
  test_failures(stored);
  ::close(stored.descriptor);
  return 0;
}
