// What is unpacked, against what `zstd` and an encoder by hand packed.
#include <cstdint>
#include <string>

#include "code/lz4.hpp"
#include "code/zstd.hpp"
#include "testing.hpp"

using namespace xmem::phantom;

namespace {

std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

// The same bytes as the script made that packed them.
class Numbers {
 public:
  std::uint32_t next() { return state_ = (state_ * 1103515245U + 12345U) & 0x7fffffffU; }

 private:
  std::uint32_t state_ = 12345;
};

std::string names(std::size_t size) {
  Numbers numbers;
  std::string made;
  while (made.size() < size) {
    made += "kernel_" + std::to_string((numbers.next() >> 20) & 7) + "::operator()(int, float) ";
  }
  return made.substr(0, size);
}

template <typename Byte>
std::string bytes_of(std::size_t size, Byte byte) {
  Numbers numbers;
  std::string made;
  for (std::size_t i = 0; i < size; ++i) made += static_cast<char>(byte(numbers.next()));
  return made;
}

using Unpack = bool (*)(const void*, std::size_t, void*, std::size_t);

std::string unpacked(Unpack unpack, const std::string& packed, std::size_t size) {
  std::string made(size, '?');
  return unpack(packed.data(), packed.size(), made.data(), size) ? made : "(invalid)";
}

// `zstd -3`: repeated text; symbols that differ in frequency, in four streams; what cannot be packed; zeros.
const std::string kNames = from_hex(
    "28b52ffd60dc04150400f284101590277964b635f815f666460d2401d9f0295099713da6b760d51b1e595d5a068a6e45c77a3e317f2f"
    "bcd70b69946378180cc02108a490e6637a0b563dc1b0446f212720e03703b8e06789e1821fce2c097e38b324f8e10c17fc70860b7e38"
    "c3057e38c3053f9ce162e970868ba5c3192e960e67b8e087335c34be216e7a02");
const std::string kSkewed = from_hex(
    "28b52ffd60dc045d1600063b6e8e6553533153323220620069007000e7b1f1590e79622cb298e22e72f622ed8667f69586fd9fb68e80"
    "c1963dc51fda03b5e0aeee18a7fae66a218fb4d520ccf34dfb24aaf89e342165cb3c1b803cdc258791384cbc7e092c8761235f1adcaa"
    "f41ac0568959c97ff85c96451650abf019c99fb332d087dfea4741a3cf105ecb50023890381246778ba4c83ef3404ccbe48866092e23"
    "21e0e34856cd36452cb3b1cf3a2a22afeb326e85de56b40bad4779307f378dd046d4649b65011f411ce51bca1b03f8cf3eaad804744d"
    "e01960311159574ef769b01859fb8c8bb5a1b0183e11070ca31aa36c741d2c5c340e5947585519a8f21115c37a010bd4080839671824"
    "9838013bfb4888612f9ef4abb15a3919ee0d2875dbb05af48b36f8501100e1220492dbf160b990078d1f48d01308a5ce0b634ec34991"
    "1394b9f2680ec5580016aeb0f240893aeea89c2be027c4f810d033003447e651e364149444d229d1592c172c90311a9ce0116841316c"
    "f7a8266b7866627a08e637f39a30dc507413144c360336733139b21a729529e63cf370a656538df29610263467d8846cc43fe90c1a32"
    "b86015046a2a649be81c355b13b2061f3f3888587b8084a8b110458a39333332818ca485e9101262143af40110d076e2770821d8bb06"
    "2977334bb4859d129bd4498941d73614a4da48d294e0a78d22f9368fe59389fb655f6427937fe231a5d1942a57d7c36ab8bbf03414cb"
    "936abe22df99298cc04ecedb84e9b9ec4951e74d493f8814565df36e3b1f04767ea465bbe04123f8f5d6b50b994604995203ce4725ac"
    "eb21c2c5093d960c4ea4b3437b52b4551de1b1bf2bd73fd867a39cda4e83b2e980f9f03aeff9b3748228488c38e2dacf10cbeb413088"
    "fddbecba1b3b652c59680c7852b78c6ffeeb377cac34a0d179c0e4c619bcd2be21a525cdb0b74ac91448d633577be35d18cf83d80bd5"
    "005c639a2d518c436ac6e048bc9ecea5e1ababd2ef2d6a");
const std::string kRandom = from_hex(
    "28b52ffd2050810200dc0465aa1fad1d5adae5ac1b1e5f1370796cfd10ff19af601d04acb41d022b4678733af2df5faeb70859d1ee39"
    "10cb4895b5cc892911ff06b6622edf3cf935fd4b9428ca097c44b3025e965fb3ea6dac");
const std::string kZeros = from_hex("28b52ffda0400d03005400001000000100fbff39c002036a0800");

std::string skewed(std::size_t size) {
  return bytes_of(size, [](std::uint32_t x) { return (x >> 16) & 255 & (x >> 8) & 15; });
}

}  // namespace

TEST(frames_of_zstd_are_unpacked) {
  CHECK_EQUAL(unpacked(unpack_zstd, kNames, 1500), names(1500));
  CHECK(unpacked(unpack_zstd, kSkewed, 1500) == skewed(1500));
  CHECK(unpacked(unpack_zstd, kRandom, 80) == bytes_of(80, [](std::uint32_t x) { return (x >> 16) & 255; }));
  CHECK(unpacked(unpack_zstd, kZeros, 200000) == std::string(200000, '\0'));
}

TEST(a_frame_of_another_size_is_invalid) {
  CHECK_EQUAL(unpacked(unpack_zstd, kNames, 1499), "(invalid)");
  CHECK_EQUAL(unpacked(unpack_zstd, kNames, 1501), "(invalid)");
  CHECK_EQUAL(unpacked(unpack_zstd, "", 0), "(invalid)");
}

TEST(a_frame_that_is_cut_is_invalid) {
  for (const std::string& whole : {kNames, kSkewed}) {
    for (std::size_t length = 0; length < whole.size(); ++length) {
      CHECK_EQUAL(unpacked(unpack_zstd, whole.substr(0, length), 1500), "(invalid)");
    }
  }
}

TEST(damaged_frames_do_no_harm) {
  for (const std::string& whole : {kNames, kSkewed}) {
    for (std::size_t place = 4; place < whole.size(); ++place) {
      for (const int mask : {1, 0x80, 0xff}) {
        std::string damaged = whole;
        damaged[place] = static_cast<char>(damaged[place] ^ mask);
        unpacked(unpack_zstd, damaged, 1500);  // the sanitizers watch
      }
    }
  }
}

TEST(blocks_of_lz4_are_unpacked) {
  // Two literals, a match of 20 that overlaps itself, five literals.
  const std::string block = from_hex(
      "2f61620200015063646566"
      "67");
  CHECK_EQUAL(unpacked(unpack_lz4, block, 27),
              "ab"
              "abababababababababab"
              "cdefg");
  // Lengths beyond 15 and 255.
  std::string literals = from_hex("f0ff1e") + std::string(300, 'x');
  CHECK_EQUAL(unpacked(unpack_lz4, literals, 300), std::string(300, 'x'));
}

TEST(damaged_blocks_of_lz4_are_invalid) {
  CHECK_EQUAL(unpacked(unpack_lz4,
                       from_hex("2f616203000150636465"
                                "6667"),
                       27),
              "(invalid)");  // before the begin
  CHECK_EQUAL(unpacked(unpack_lz4,
                       from_hex("2f616200000150636465"
                                "6667"),
                       27),
              "(invalid)");                                                            // from nowhere
  CHECK_EQUAL(unpacked(unpack_lz4, from_hex("2f6162020001506364"), 27), "(invalid)");  // cut
  CHECK_EQUAL(unpacked(unpack_lz4, from_hex("ff"), 27), "(invalid)");
  CHECK_EQUAL(unpacked(unpack_lz4,
                       from_hex("2f61620200015063646566"
                                "67"),
                       26),
              "(invalid)");
}
