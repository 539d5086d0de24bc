#include <string>

#include "base/string_table.hpp"
#include "testing.hpp"

using xmem::NameId;
using xmem::StringTable;

TEST(the_same_text_gets_the_same_id) {
  StringTable names;
  const NameId conv = names.intern("aten::conv2d");
  const NameId relu = names.intern("aten::relu");
  CHECK(conv != relu);
  CHECK_EQUAL(names.intern(std::string("aten::") + "conv2d").value, conv.value);
  CHECK_EQUAL(names[relu], "aten::relu");
}

TEST(views_stay_valid_and_ids_stay_dense_while_the_table_grows) {
  StringTable names;
  const std::string_view first = names[names.intern("first")];
  for (int i = 0; i < 100'000; ++i) CHECK_EQUAL(names.intern("name " + std::to_string(i)).value, i + 1);
  CHECK_EQUAL(first, "first");
  CHECK_EQUAL(names[names.find("name 99999")], "name 99999");
}

TEST(an_empty_text_and_one_longer_than_a_slab_are_texts_like_others) {
  StringTable names;
  const std::string huge(1'000'000, 'x');
  CHECK_EQUAL(names[names.intern("")], "");
  CHECK_EQUAL(names[names.intern(huge)].size(), huge.size());
  CHECK(names.find("never seen").is_none());
}
