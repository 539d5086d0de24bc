#include "libraries/cublas/problem.hpp"

namespace xmem::phantom {
namespace {

void append(std::string& json, const char* key, std::int64_t value) {
  json += ",\"";
  json += key;
  json += "\":";
  json += std::to_string(value);
}

char letter(int transposed) {
  return transposed == 0 ? 'n' : transposed == 1 ? 't' : 'c';
}

}  // namespace

std::string problem_of(const Product& product) {
  std::string json = "{\"family\":\"";
  json += product.family;
  json += "\",\"layout\":\"";
  json += letter(product.transposed_a);
  json += letter(product.transposed_b);
  json += '"';
  append(json, "m", product.m);
  append(json, "n", product.n);
  append(json, "k", product.k);
  append(json, "batch", product.batch);
  append(json, "a", product.type_a);
  append(json, "b", product.type_b);
  append(json, "c", product.type_c);
  append(json, "arithmetic", product.arithmetic);
  append(json, "lda", product.lda);
  append(json, "ldb", product.ldb);
  append(json, "ldc", product.ldc);
  if (product.math_mode != 0) append(json, "math_mode", product.math_mode);
  if (product.epilogue >= 0) append(json, "epilogue", product.epilogue);
  return json + "}";
}

}  // namespace xmem::phantom
