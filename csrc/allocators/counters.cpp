#include "allocators/counters.hpp"

namespace xmem::allocators {
namespace {

template <class Member>
struct Named {
  const char* name;
  Member Statistics::* member;
};

constexpr Named<PooledStat> kPooledGauges[] = {
    {"allocation", &Statistics::allocation},
    {"segment", &Statistics::segment},
    {"active", &Statistics::active},
    {"inactive_split", &Statistics::inactive_split},
    {"allocated_bytes", &Statistics::allocated_bytes},
    {"reserved_bytes", &Statistics::reserved_bytes},
    {"active_bytes", &Statistics::active_bytes},
    {"inactive_split_bytes", &Statistics::inactive_split_bytes},
    {"requested_bytes", &Statistics::requested_bytes},
};
constexpr Named<Stat> kGauges[] = {
    {"oversize_allocations", &Statistics::oversize_allocations},
    {"oversize_segments", &Statistics::oversize_segments},
};
constexpr Named<std::int64_t> kCounts[] = {
    {"num_alloc_retries", &Statistics::num_alloc_retries},
    {"num_ooms", &Statistics::num_ooms},
    {"num_sync_all_streams", &Statistics::num_sync_all_streams},
    {"num_device_alloc", &Statistics::num_device_alloc},
    {"num_device_free", &Statistics::num_device_free},
    {"num_oom_rejections", &Statistics::num_oom_rejections},
};

void append(const Stat& gauge, std::vector<std::int64_t>& row) {
  row.insert(row.end(), {gauge.current, gauge.peak, gauge.allocated, gauge.freed()});
}

}  // namespace

std::vector<std::string> counter_names() {
  std::vector<std::string> names;
  const auto add = [&](const std::string& gauge) {
    for (const char* field : {"current", "peak", "allocated", "freed"}) names.push_back(gauge + "." + field);
  };
  for (const auto& [name, member] : kPooledGauges) {
    for (const char* scope : {"all", "small_pool", "large_pool"}) add(std::string(name) + "." + scope);
  }
  for (const auto& [name, member] : kGauges) add(name);
  for (const auto& [name, member] : kCounts) names.emplace_back(name);
  return names;
}

void append_counters(const Statistics& statistics, std::vector<std::int64_t>& row) {
  for (const auto& [name, member] : kPooledGauges) {
    const PooledStat& gauge = statistics.*member;
    append(gauge.all, row);
    for (const Stat& pool : gauge.of_pool) append(pool, row);
  }
  for (const auto& [name, member] : kGauges) append(statistics.*member, row);
  for (const auto& [name, member] : kCounts) row.push_back(statistics.*member);
}

}  // namespace xmem::allocators
