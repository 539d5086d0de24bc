// What a cubin says of its kernels; the cubins are written by hand, as nvcc lays them out.
#include <elf.h>

#include <cstring>
#include <string>
#include <vector>

#include "code/code_object.hpp"
#include "testing.hpp"

using namespace xmem::phantom;

namespace {

template <typename Value>
void append(std::string& bytes, const Value& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string words(std::initializer_list<std::uint32_t> values) {
  std::string bytes;
  for (const std::uint32_t value : values) append(bytes, value);
  return bytes;
}

std::string attribute(unsigned char number, const std::string& content) {
  std::string bytes{'\4', static_cast<char>(number)};
  append(bytes, static_cast<std::uint16_t>(content.size()));
  return bytes + content;
}

struct Section {
  std::string name;
  std::string content;
  std::uint32_t type = SHT_PROGBITS;
  std::uint64_t size = 0;  // of what takes no bytes of the file
  std::uint32_t info = 0;
};

struct Symbol {
  std::string name;
  unsigned char kind;
  std::uint16_t section;
};

// Symbols are numbered from 1.
std::string cubin(int architecture, const std::vector<Symbol>& symbols, std::vector<Section> sections) {
  std::string names(1, '\0'), symbol_names(1, '\0'), table(sizeof(Elf64_Sym), '\0');
  for (const Symbol& symbol : symbols) {
    Elf64_Sym entry{};
    entry.st_name = static_cast<Elf64_Word>(symbol_names.size());
    entry.st_info = symbol.kind;
    entry.st_shndx = symbol.section;
    append(table, entry);
    symbol_names += symbol.name + '\0';
  }
  sections.insert(sections.begin(), {"", "", SHT_NULL, 0, 0});
  const auto symbols_at = sections.size();
  sections.push_back({".symtab", table, SHT_SYMTAB, 0, 0});
  sections.push_back({".strtab", symbol_names, SHT_STRTAB, 0, 0});
  sections.push_back({".shstrtab", "", SHT_STRTAB, 0, 0});
  std::vector<Elf64_Shdr> headers(sections.size());
  for (std::size_t i = 1; i < sections.size(); ++i) {
    headers[i].sh_name = static_cast<Elf64_Word>(names.size());
    names += sections[i].name + '\0';
  }
  sections.back().content = names;
  std::string body;
  for (std::size_t i = 1; i < sections.size(); ++i) {
    headers[i].sh_type = sections[i].type;
    headers[i].sh_offset = sizeof(Elf64_Ehdr) + body.size();
    headers[i].sh_size = sections[i].size > 0 ? sections[i].size : sections[i].content.size();
    headers[i].sh_info = sections[i].info;
    if (i == symbols_at) headers[i].sh_link = static_cast<Elf64_Word>(symbols_at + 1);
    body += sections[i].content;
  }
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_ABIVERSION] = 7;
  header.e_flags = static_cast<Elf64_Word>(architecture);
  header.e_shoff = sizeof header + body.size();
  header.e_shnum = static_cast<Elf64_Half>(sections.size());
  header.e_shstrndx = static_cast<Elf64_Half>(sections.size() - 1);
  std::string bytes;
  append(bytes, header);
  bytes += body;
  for (const Elf64_Shdr& each : headers) append(bytes, each);
  return bytes;
}

constexpr unsigned char kFunction = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);

// Two kernels, `one` with everything, `two` with little; __assertfail is the system's.
std::string two_kernels(int architecture, std::uint64_t shared_section = 2064) {
  const std::vector<Symbol> symbols = {{"one", kFunction, 1}, {"two", kFunction, 2}, {"__assertfail", kFunction, 0}};
  return cubin(
      architecture, symbols,
      {{".text.one", "code", SHT_PROGBITS, 0, 0},
       {".text.two", "code", SHT_PROGBITS, 0, 0},
       {".nv.info",
        attribute(0x2f, words({1, 46})) + attribute(0x2f, words({2, 10})) + attribute(0x11, words({1, 0})) +
            attribute(0x12, words({1, 88})),
        0x70000000, 0, 0},
       {".nv.info.one", attribute(0x05, words({128, 2, 1})) + attribute(0x3d, words({2, 1, 1})), 0x70000000, 0, 0},
       {".nv.shared.one", "", SHT_NOBITS, shared_section, 0},
       {".nv.constant3", std::string(40, 'c'), SHT_PROGBITS, 0, 0}});
}

KernelCode code_of(const CodeObject& read, const std::string& name) {
  for (const ListedKernel& listed : read.kernels) {
    if (listed.name == name) return listed.code;
  }
  return {};
}

}  // namespace

TEST(a_cubin_says_what_its_kernels_need) {
  const std::string bytes = two_kernels(80);
  const CodeObject read = read_code_object(bytes.data(), bytes.size());
  CHECK(read.listed && read.kernels.size() == 2);
  const KernelCode one = code_of(read, "one");
  CHECK_EQUAL(one.registers, 46);
  CHECK_EQUAL(one.static_shared_bytes, 2064);
  CHECK_EQUAL(one.local_bytes, 88);
  CHECK_EQUAL(one.constant_bytes, 40);
  CHECK_EQUAL(one.most_threads, 256);
  CHECK_EQUAL(one.cluster_blocks, 2);
  CHECK_EQUAL(code_of(read, "two").registers, 16);  // the least that a driver says
  CHECK_EQUAL(code_of(read, "two").static_shared_bytes, 0);
}

TEST(from_hopper_on_the_section_begins_with_what_the_system_keeps) {
  const std::string bytes = two_kernels(90, 1040);
  CHECK_EQUAL(code_of(read_code_object(bytes.data(), bytes.size()), "one").static_shared_bytes, 16);
}

TEST(kernels_that_call_the_system_take_the_registers_of_what_they_call) {
  const std::vector<Symbol> symbols = {
      {"asserts", kFunction, 1}, {"__assertfail", kFunction, 0}, {"calls", kFunction, 2}};
  const std::string bytes =
      cubin(90, symbols,
            {{".text.asserts", "code", SHT_PROGBITS, 0, 0},
             {".text.calls", "code", SHT_PROGBITS, 0, 0},
             {".nv.info", attribute(0x2f, words({1, 24})) + attribute(0x2f, words({3, 24})), 0x70000000, 0, 0},
             {".nv.info.asserts", attribute(0x0f, words({2})), 0x70000000, 0, 0},
             {".nv.info.calls", attribute(0x0f, words({1})), 0x70000000, 0, 0}});  // one that is here
  const CodeObject read = read_code_object(bytes.data(), bytes.size());
  CHECK_EQUAL(code_of(read, "asserts").registers, 32);
  CHECK_EQUAL(code_of(read, "calls").registers, 24);
}

TEST(a_cut_cubin_does_no_harm) {
  const std::string whole = two_kernels(80);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    std::string part = whole.substr(0, length);
    CHECK(!read_code_object(part.data(), part.size()).listed);
  }
  for (std::size_t place = 16; place < whole.size(); ++place) {
    std::string damaged = whole;
    damaged[place] = static_cast<char>(damaged[place] ^ 0xff);
    read_code_object(damaged.data(), damaged.size());  // the sanitizers watch
  }
}
