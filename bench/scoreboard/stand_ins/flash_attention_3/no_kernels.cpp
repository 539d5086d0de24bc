// FlashAttention 3's host code, which allocates what a call takes, with kernels that do nothing: none would run, and to
// compile them takes hours. Their declarations are in `flash.h`.
#include "flash_api.cpp"

template <int Arch, typename T, int kHeadDim, int kHeadDimV, bool Split, bool PagedKVNonTMA, bool Has_softcap,
          bool PackGQA>
void run_mha_fwd_(Flash_fwd_params&, cudaStream_t) {}

template <int Arch, typename T, int kHeadDim, bool Has_softcap>
void run_mha_bwd_(Flash_bwd_params&, cudaStream_t) {}

template <typename T, typename Tpartial, int kBlockK>
void run_mha_fwd_combine_(Flash_fwd_params&, cudaStream_t, bool) {}

void prepare_varlen_num_blocks(Flash_fwd_params&, cudaStream_t, bool, int, int, bool) {}
