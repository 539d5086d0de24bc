#include <sys/mman.h>

#include <cstring>
#include <string>
#include <vector>

#include "code/fat_binary.hpp"
#include "testing.hpp"

using namespace xmem::phantom;
using Form = Image::Form;
using Reach = Image::Reach;

namespace {

constexpr std::uint64_t kCubin64 = 0x11, kLz4 = 0x2000, kZstd = 0x8000, kExact = 0x100000, kFamily = 0x200000;

template <typename Value>
void append(std::string& bytes, Value value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// An entry as fatbinary writes it: a header of at least 64 bytes, then what it holds.
std::string entry(std::uint16_t kind, std::uint32_t architecture, std::uint64_t flags = kCubin64,
                  std::uint32_t header_bytes = 64, std::uint64_t content_bytes = 24) {
  std::string made;
  append<std::uint16_t>(made, kind);
  append<std::uint16_t>(made, 0x101);
  append<std::uint32_t>(made, header_bytes);
  append<std::uint64_t>(made, content_bytes);
  append<std::uint32_t>(made, 0);
  append<std::uint32_t>(made, 64);
  append<std::uint16_t>(made, 7);
  append<std::uint16_t>(made, 1);
  append<std::uint32_t>(made, architecture);
  append<std::uint64_t>(made, 0);
  append<std::uint64_t>(made, flags);
  made.resize(header_bytes, '\0');
  return made.append(content_bytes, '\x55');
}

std::string container(const std::string& entries, std::uint64_t content_bytes) {
  std::string made;
  append<std::uint32_t>(made, 0xba55ed50);
  append<std::uint16_t>(made, 1);
  append<std::uint16_t>(made, 16);
  append<std::uint64_t>(made, content_bytes);
  return made + entries;
}
std::string container(const std::string& entries) {
  return container(entries, entries.size());
}

// Bytes that end where a page ends that may not be read.
class Guarded {
 public:
  explicit Guarded(const std::string& bytes) : size_((bytes.size() / kPage + 2) * kPage) {
    map_ = static_cast<char*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(map_ + size_ - kPage, kPage, PROT_NONE);
    begin_ = map_ + size_ - kPage - bytes.size();
    std::memcpy(begin_, bytes.data(), bytes.size());
  }
  ~Guarded() { munmap(map_, size_); }
  const void* begin() const { return begin_; }

 private:
  static constexpr std::size_t kPage = 65536;
  std::size_t size_;
  char* map_;
  char* begin_;
};

FatBinary read_guarded(const std::string& bytes) {
  return read_fat_binary(Guarded(bytes).begin(), bytes.size());
}

Image image(Form form, int architecture, Reach reach) {
  Image made{};
  made.form = form;
  made.architecture = architecture;
  made.reach = reach;
  return made;
}
Image cubin(int architecture, Reach reach = Reach::kPortable) {
  return image(Form::kCubin, architecture, reach);
}
Image ptx(int architecture, Reach reach = Reach::kPortable) {
  return image(Form::kPtx, architecture, reach);
}

std::string chosen(const std::vector<Image>& images, int capability) {
  const CodeVersions versions = choose_image(images, capability);
  return std::to_string(versions.binary) + " from " + std::to_string(versions.ptx);
}

}  // namespace

TEST(a_fat_binary_lists_its_images_in_order) {
  const FatBinary read =
      read_guarded(container(entry(2, 80) + entry(2, 100, kCubin64 | 0x1000000, 112) + entry(1, 120)));
  CHECK(read.known);
  CHECK_EQUAL(read.images.size(), 3U);
  CHECK(read.images[0].form == Form::kCubin && read.images[0].architecture == 80);
  CHECK(read.images[1].form == Form::kCubin && read.images[1].architecture == 100);
  CHECK(read.images[2].form == Form::kPtx && read.images[2].architecture == 120);
}

TEST(a_wrapper_leads_to_its_container) {
  const std::string content = container(entry(2, 75));
  std::string wrapper;
  append<std::uint32_t>(wrapper, 0x466243b1);
  append<std::uint32_t>(wrapper, 1);
  append<const void*>(wrapper, content.data());
  append<const void*>(wrapper, nullptr);
  CHECK(is_fat_binary(wrapper.data()) && is_fat_binary(content.data()));
  const FatBinary read = read_guarded(wrapper);
  CHECK(read.known && read.images.size() == 1 && read.images[0].architecture == 75);
  CHECK(!read_guarded(wrapper.substr(0, 12)).known);
  std::memset(wrapper.data() + 8, 0, sizeof(void*));
  CHECK(!read_guarded(wrapper).known);
}

TEST(compressed_images_are_images_and_code_for_the_linker_is_none) {
  const FatBinary read = read_guarded(
      container(entry(2, 80, kCubin64 | kLz4) + entry(2, 86, kCubin64 | kZstd) + entry(8, 90, kCubin64 | 0x10000)));
  CHECK(read.known);
  CHECK_EQUAL(read.images.size(), 2U);
}

TEST(suffixes_of_architectures_are_read) {
  const FatBinary read = read_guarded(container(entry(2, 90) + entry(2, 90, kCubin64 | kExact) +
                                                entry(1, 100, kCubin64 | kFamily) + entry(2, 100, 0x1108011)));
  CHECK_EQUAL(read.images.size(), 4U);
  CHECK(read.images[0].reach == Reach::kPortable);
  CHECK(read.images[1].reach == Reach::kExact);
  CHECK(read.images[2].reach == Reach::kFamily);
  CHECK(read.images[3].reach == Reach::kExact);
}

TEST(what_is_no_fat_binary_is_not_known) {
  CHECK(!read_fat_binary(nullptr).known);
  CHECK(!read_guarded("").known);
  CHECK(!read_guarded("\x7f"
                      "ELF and so on, and on")
             .known);
  CHECK(!read_guarded(".version 8.0\n.target sm_80\n").known);
  std::string short_header = container(entry(2, 80));
  short_header[6] = 8;  // a header that is shorter than its own fields
  CHECK(!read_guarded(short_header).known);
  std::string long_header = container(entry(2, 80));
  long_header[7] = 0x7f;  // a header that is longer than the file
  CHECK(!read_guarded(long_header).known);
}

TEST(a_container_without_entries_is_known_and_empty) {
  const FatBinary read = read_guarded(container(""));
  CHECK(read.known && read.images.empty());
}

TEST(nothing_past_what_the_headers_state_is_read) {
  const std::string whole = container(entry(2, 80) + entry(2, 86));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const FatBinary read = read_guarded(whole.substr(0, size));  // a truncated file
    CHECK(read.images.size() <= 1);
  }
  // Of memory only the header says how much there is: the second entry begins behind it.
  const Guarded memory(container(entry(2, 80), entry(2, 80).size()));
  CHECK_EQUAL(read_fat_binary(memory.begin()).images.size(), 1U);
  const Guarded part(container(entry(2, 80) + entry(2, 86).substr(0, 20), entry(2, 80).size() + 20));
  CHECK_EQUAL(read_fat_binary(part.begin()).images.size(), 1U);
}

TEST(entries_that_reach_past_their_container_make_it_unknown) {
  for (const std::string& bad :
       {entry(2, 80, kCubin64, 64, 24).replace(8, 8, 8, '\xff'),     // its content
        entry(2, 80, kCubin64, 64, 24).replace(4, 4, 4, '\xff'),     // its header
        entry(2, 80, kCubin64, 64, 24).replace(4, 4, 4, '\0'),       // a header of nothing: without an end
        entry(2, 80, kCubin64, 64, 24).replace(4, 1, 1, '\x20')}) {  // a header within its own fields
    const Guarded memory(container(entry(2, 75) + bad));
    const FatBinary read = read_fat_binary(memory.begin());
    CHECK(!read.known && read.images.empty());
  }
}

TEST(of_two_cubins_for_an_architecture_the_closer_one_is_chosen) {
  const std::vector<Image> images = {cubin(80), cubin(90), cubin(90, Reach::kExact)};
  CHECK(chosen_image(images, 90) == &images[2]);
  CHECK(chosen_image(images, 86) == &images[0]);
  CHECK(chosen_image(images, 75) == nullptr);
}

TEST(an_image_is_unpacked) {
  const std::string packed = std::string(
      "\x2f"
      "ab\2\0\1\x50"
      "cdefg",
      12);
  std::string compressed = entry(2, 80, kCubin64 | kLz4, 72, 16);
  compressed.replace(16, 1, 1, static_cast<char>(packed.size()));
  compressed.replace(56, 1, 1, 27);
  compressed.replace(72, packed.size(), packed);
  const std::string whole = container(compressed);
  const std::vector<char> made = unpack(read_fat_binary(whole.data()).images.at(0));
  CHECK_EQUAL(std::string(made.begin(), made.end()),
              "ababababababababababab"
              "cdefg");
  compressed.replace(56, 1, 1, 28);
  const std::string wrong = container(compressed);
  CHECK(unpack(read_fat_binary(wrong.data()).images.at(0)).empty());
}

TEST(the_highest_cubin_of_the_same_major_version_is_chosen) {
  const std::vector<Image> torch = {cubin(75), cubin(80), cubin(86), cubin(90), cubin(100), cubin(120)};
  CHECK_EQUAL(chosen(torch, 89), "86 from 86");
  CHECK_EQUAL(chosen(torch, 86), "86 from 86");
  CHECK_EQUAL(chosen(torch, 80), "80 from 80");
  CHECK_EQUAL(chosen(torch, 75), "75 from 75");
  CHECK_EQUAL(chosen(torch, 90), "90 from 90");
  CHECK_EQUAL(chosen(torch, 103), "100 from 100");
  CHECK_EQUAL(chosen(torch, 121), "120 from 120");
  CHECK(!choose_image(torch, 70).runs());
  CHECK(!choose_image({}, 80).runs());
}

TEST(ptx_is_compiled_for_the_card_where_no_cubin_runs) {
  CHECK_EQUAL(chosen({cubin(80), ptx(80), ptx(90)}, 120), "120 from 90");
  CHECK_EQUAL(chosen({cubin(80), ptx(80), ptx(90)}, 89), "80 from 80");
  CHECK_EQUAL(chosen({ptx(70), cubin(90)}, 89), "89 from 70");
  CHECK(!choose_image({ptx(80)}, 75).runs());
}

TEST(suffixed_images_run_where_they_are_meant_to) {
  CHECK_EQUAL(chosen({cubin(90), cubin(90, Reach::kExact)}, 90), "90 from 90");
  CHECK(!choose_image({cubin(100, Reach::kExact), ptx(90, Reach::kExact)}, 103).runs());
  CHECK_EQUAL(chosen({cubin(100, Reach::kFamily)}, 103), "100 from 100");
  CHECK_EQUAL(chosen({ptx(100, Reach::kFamily)}, 103), "103 from 100");
  CHECK(!choose_image({ptx(100, Reach::kFamily)}, 120).runs());
}

TEST(cubins_of_tegra_run_on_no_card) {
  CHECK(!choose_image({cubin(87)}, 89).runs());
  CHECK_EQUAL(chosen({cubin(80), cubin(87)}, 89), "80 from 80");
  CHECK_EQUAL(chosen({cubin(86), cubin(87)}, 87), "87 from 87");
  CHECK(!choose_image({cubin(86)}, 87).runs());
}
