#include "testing.hpp"
#include "trace/parsing/frame_name.hpp"

using xmem::trace::is_user_frame;

TEST(the_users_own_files_are_told_from_installed_code) {
  CHECK(is_user_frame("train.py(12): main"));
  CHECK(is_user_frame("/home/me/project/models/net.py(7): forward"));
  CHECK(is_user_frame("models/net.py(7): forward"));
  CHECK(!is_user_frame("torch/nn/modules/module.py(1773): _call_impl"));
  CHECK(!is_user_frame("transformers/utils/generic.py(437): __setattr__"));
  CHECK(!is_user_frame("contextlib.py(81): inner"));
  CHECK(!is_user_frame("/opt/env/lib/python3.11/site-packages/timm/x.py(1): f"));
  CHECK(!is_user_frame("<string>(1): f"));
  CHECK(!is_user_frame("<built-in method conv2d>"));
  CHECK(!is_user_frame("train.py: no line"));
}
