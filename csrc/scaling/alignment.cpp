#include "scaling/alignment.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"

namespace xmem::scaling {
namespace {

using Keys = std::span<const std::int64_t>;

// The furthest rows of `left` that are reached on each diagonal with so many differences.
//
// Diagonal k holds the pairs (x, x - k) of rows; with d differences the diagonals -d, -d + 2, ..., d can be reached.
class Frontier {
 public:
  explicit Frontier(std::ptrdiff_t differences) : furthest_(static_cast<std::size_t>(2 * differences + 1), -1) {}
  std::ptrdiff_t& operator[](std::ptrdiff_t diagonal) {
    return furthest_[static_cast<std::size_t>(diagonal + static_cast<std::ptrdiff_t>(furthest_.size() / 2))];
  }

 private:
  std::vector<std::ptrdiff_t> furthest_;
};

std::ptrdiff_t length(Keys keys) {
  return static_cast<std::ptrdiff_t>(keys.size());
}

// A path comes to a diagonal from a row of `right` without counterpart (k + 1) or from one of `left` (k - 1).
bool comes_from_above(Frontier& before, std::ptrdiff_t diagonal, std::ptrdiff_t differences) {
  return diagonal == -differences || (diagonal != differences && before[diagonal - 1] < before[diagonal + 1]);
}

std::ptrdiff_t start_of(Frontier& before, std::ptrdiff_t diagonal, std::ptrdiff_t differences) {
  return comes_from_above(before, diagonal, differences) ? before[diagonal + 1] : before[diagonal - 1] + 1;
}

// Frontiers of 0, 1, 2, ... differences, up to the first that reaches the end of both.
std::vector<Frontier> search(Keys left, Keys right, std::size_t max_differences) {
  std::vector<Frontier> frontiers;
  for (std::ptrdiff_t differences = 0;; ++differences) {
    if (static_cast<std::size_t>(differences) > max_differences) {
      throw ConfigError("the two runs differ in more than " + std::to_string(max_differences) + " blocks",
                        "use runs of one script that differ only in sizes");
    }
    Frontier reached(differences + 1);  // room for the neighbours that the next round asks for
    for (std::ptrdiff_t diagonal = -differences; diagonal <= differences; diagonal += 2) {
      std::ptrdiff_t x = differences == 0 ? 0 : start_of(frontiers.back(), diagonal, differences);
      while (x < length(left) && x - diagonal < length(right) &&
             left[static_cast<std::size_t>(x)] == right[static_cast<std::size_t>(x - diagonal)]) {
        ++x;
      }
      reached[diagonal] = x;
    }
    const std::ptrdiff_t end = length(left) - length(right);
    const bool ends_here = std::abs(end) <= differences && (differences - end) % 2 == 0;
    const bool done = ends_here && reached[end] >= length(left);
    frontiers.push_back(std::move(reached));
    if (done) return frontiers;
  }
}

// Walks the frontiers back from the end and notes the rows that were passed together.
void trace_back(std::vector<Frontier>& frontiers, Keys left, Keys right, std::span<std::int32_t> counterpart) {
  std::ptrdiff_t x = length(left);
  std::ptrdiff_t diagonal = length(left) - length(right);
  for (auto differences = static_cast<std::ptrdiff_t>(frontiers.size()) - 1; differences >= 0; --differences) {
    Frontier* const before = differences == 0 ? nullptr : &frontiers[static_cast<std::size_t>(differences - 1)];
    const std::ptrdiff_t start = before == nullptr ? 0 : start_of(*before, diagonal, differences);
    for (; x > start; --x) counterpart[static_cast<std::size_t>(x - 1)] = static_cast<std::int32_t>(x - 1 - diagonal);
    if (before == nullptr) return;
    const bool from_above = comes_from_above(*before, diagonal, differences);
    x = from_above ? start : start - 1;
    diagonal += from_above ? 1 : -1;
  }
}

}  // namespace

std::vector<std::int32_t> align(Keys left, Keys right, std::size_t max_differences) {
  const auto head = static_cast<std::size_t>(std::ranges::mismatch(left, right).in1 - left.begin());
  Keys left_rest = left.subspan(head);
  Keys right_rest = right.subspan(head);
  std::size_t tail = 0;
  while (tail < std::min(left_rest.size(), right_rest.size()) &&
         left_rest[left_rest.size() - 1 - tail] == right_rest[right_rest.size() - 1 - tail]) {
    ++tail;
  }
  left_rest = left_rest.first(left_rest.size() - tail);
  right_rest = right_rest.first(right_rest.size() - tail);

  std::vector<std::int32_t> counterpart(left.size(), -1);
  for (std::size_t row = 0; row < head; ++row) counterpart[row] = static_cast<std::int32_t>(row);
  for (std::size_t i = 1; i <= tail; ++i) {
    counterpart[left.size() - i] = static_cast<std::int32_t>(right.size() - i);
  }
  std::vector<Frontier> frontiers = search(left_rest, right_rest, max_differences);
  const std::span<std::int32_t> middle = std::span(counterpart).subspan(head, left_rest.size());
  trace_back(frontiers, left_rest, right_rest, middle);
  for (std::int32_t& row : middle) {
    if (row >= 0) row += static_cast<std::int32_t>(head);
  }
  return counterpart;
}

}  // namespace xmem::scaling
