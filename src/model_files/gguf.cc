#include "model_files/gguf.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <limits>

namespace tie::model_files {
namespace {

static_assert(std::endian::native == std::endian::little, "the reader loads little-endian integers directly");

constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxTensorNameBytes = 63;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr uint64_t kMaxSigned = std::numeric_limits<int64_t>::max();
// The smallest encodings of one entry: bounds what an untrusted count may claim before anything is read.
constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;

// Bytes of one element; 0 for strings, arrays and unknown types.
size_t scalar_bytes(uint32_t type) {
  static constexpr uint8_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < sizeof kBytes ? kBytes[type] : 0;
}

const char* type_name(uint32_t type) {
  static constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};
  return type < std::size(kNames) ? kNames[type] : "unknown";
}

template <typename T>
T load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

GgufValue load_scalar(GgufType type, const uint8_t* p) {
  switch (type) {
    case GgufType::kU8:
      return uint64_t{*p};
    case GgufType::kU16:
      return uint64_t{load<uint16_t>(p)};
    case GgufType::kU32:
      return uint64_t{load<uint32_t>(p)};
    case GgufType::kU64:
      return load<uint64_t>(p);
    case GgufType::kI8:
      return int64_t{load<int8_t>(p)};
    case GgufType::kI16:
      return int64_t{load<int16_t>(p)};
    case GgufType::kI32:
      return int64_t{load<int32_t>(p)};
    case GgufType::kI64:
      return load<int64_t>(p);
    case GgufType::kF32:
      return double{load<float>(p)};
    case GgufType::kF64:
      return load<double>(p);
    case GgufType::kBool:
      return *p != 0;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return uint64_t{0};
}

class Cursor {
 public:
  explicit Cursor(ByteView file) : file_(file) {}

  size_t position() const { return at_; }
  size_t left() const { return file_.size() - at_; }

  Result<ByteView> take(uint64_t bytes, const char* what) {
    if (bytes > left())
      return fail(Code::kCorrupt, fmt::format("{} at byte {} needs {} bytes, {} are left", what, at_, bytes, left()));
    ByteView out = file_.subspan(at_, bytes);
    at_ += bytes;
    return out;
  }
  template <typename T>
  Result<T> integer(const char* what) {
    TIE_TRY(ByteView raw, take(sizeof(T), what));
    return load<T>(raw.data());
  }
  Result<std::string_view> string(uint64_t max_bytes, const char* what) {
    TIE_TRY(uint64_t length, integer<uint64_t>(what));
    if (length > max_bytes)
      return fail(Code::kTooLarge,
                  fmt::format("{} at byte {} claims {} bytes, the limit is {}", what, at_, length, max_bytes));
    TIE_TRY(ByteView raw, take(length, what));
    return as_text(raw);
  }

 private:
  ByteView file_;
  size_t at_ = 0;
};

Result<GgufArray> read_array(Cursor& in, const GgufLimits& limits) {
  TIE_TRY(uint32_t type, in.integer<uint32_t>("array type"));
  TIE_TRY(uint64_t count, in.integer<uint64_t>("array length"));
  if (count > limits.max_array_elements)
    return fail(Code::kTooLarge,
                fmt::format("array of {} elements, the limit is {}", count, limits.max_array_elements));
  GgufArray array{.type = static_cast<GgufType>(type), .count = count};
  if (array.type == GgufType::kArray) return fail(Code::kUnsupportedFeature, "nested arrays are not supported");
  if (array.type != GgufType::kString) {
    const size_t element = scalar_bytes(type);
    if (element == 0) return fail(Code::kCorrupt, fmt::format("unknown array element type {}", type));
    TIE_TRY(array.raw, in.take(count * element, "array"));
    return array;
  }
  Cursor walk = in;
  for (uint64_t i = 0; i < count; ++i) TIE_CHECK_OK(walk.string(limits.max_string_bytes, "string in array"));
  TIE_TRY(array.raw, in.take(walk.position() - in.position(), "array"));
  return array;
}

Result<GgufValue> read_value(Cursor& in, uint32_t type, const GgufLimits& limits) {
  if (type == static_cast<uint32_t>(GgufType::kArray)) {
    TIE_TRY(GgufArray array, read_array(in, limits));
    return array;
  }
  if (type == static_cast<uint32_t>(GgufType::kString)) {
    TIE_TRY(std::string_view text, in.string(limits.max_string_bytes, "string value"));
    return text;
  }
  const size_t bytes = scalar_bytes(type);
  if (bytes == 0) return fail(Code::kCorrupt, fmt::format("unknown value type {}", type));
  TIE_TRY(ByteView raw, in.take(bytes, "value"));
  return load_scalar(static_cast<GgufType>(type), raw.data());
}

// Element count and byte size with every product checked against the signed 64-bit range.
Result<uint64_t> tensor_bytes(const GgufTensor& tensor) {
  const TensorTypeInfo* info = tensor_type_info(tensor.type);
  if (!info)
    return fail(Code::kUnsupportedFeature, fmt::format("unknown tensor type {}", static_cast<uint32_t>(tensor.type)));
  uint64_t elements = 1;
  for (uint64_t dim : tensor.dims) {
    if (dim > kMaxSigned) return fail(Code::kCorrupt, "a dimension is negative");
    if (__builtin_mul_overflow(elements, dim, &elements) || elements > kMaxSigned)
      return fail(Code::kCorrupt, "the product of the dimensions overflows");
  }
  const uint64_t row = tensor.dims.empty() ? 1 : tensor.dims[0];
  if (row % info->block_elements != 0)
    return fail(Code::kCorrupt, fmt::format("rows of {} elements do not divide into blocks of {} ({})", row,
                                            info->block_elements, info->name));
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements / info->block_elements, uint64_t{info->block_bytes}, &bytes) ||
      bytes > kMaxSigned)
    return fail(Code::kCorrupt, "the tensor's size overflows");
  return bytes;
}

Result<GgufTensor> read_tensor(Cursor& in) {
  GgufTensor tensor;
  TIE_TRY(tensor.name, in.string(kMaxTensorNameBytes, "tensor name"));
  TIE_TRY(uint32_t n_dims, in.integer<uint32_t>("tensor dimension count"));
  if (n_dims > kMaxDims)
    return fail(Code::kCorrupt, fmt::format("{} dimensions, at most {} are allowed", n_dims, kMaxDims));
  for (uint32_t i = 0; i < n_dims; ++i) {
    TIE_TRY(uint64_t dim, in.integer<uint64_t>("tensor dimension"));
    tensor.dims.push_back(dim);
  }
  TIE_TRY(uint32_t type, in.integer<uint32_t>("tensor type"));
  tensor.type = static_cast<TensorType>(type);
  TIE_TRY(tensor.offset, in.integer<uint64_t>("tensor offset"));
  TIE_TRY(tensor.bytes, tensor_bytes(tensor));
  return tensor;
}

Result<uint64_t> alignment_of(const std::map<std::string_view, GgufValue>& metadata) {
  auto found = metadata.find("general.alignment");
  if (found == metadata.end()) return kDefaultAlignment;
  const uint64_t* value = std::get_if<uint64_t>(&found->second);
  if (!value) return fail(Code::kCorrupt, "general.alignment is not an unsigned integer");
  if (!std::has_single_bit(*value) || *value > kMaxAlignment)
    return fail(Code::kCorrupt,
                fmt::format("general.alignment {} is not a power of two up to {}", *value, kMaxAlignment));
  return *value;
}

// Tensors must follow each other in file order, each start rounded up to the alignment: so none overlaps another.
Result<uint64_t> check_layout(const std::vector<GgufTensor>& tensors, uint64_t alignment) {
  uint64_t end = 0;
  for (const GgufTensor& tensor : tensors) {
    if (tensor.offset != end)
      return fail(Code::kCorrupt, fmt::format("tensor {} starts at {}, expected {}", tensor.name, tensor.offset, end));
    uint64_t padded = 0;
    if (__builtin_add_overflow(tensor.bytes, alignment - 1, &padded) ||
        __builtin_add_overflow(end, padded & ~(alignment - 1), &end) || end > kMaxSigned)
      return fail(Code::kCorrupt, fmt::format("the data section overflows at tensor {}", tensor.name));
  }
  return tensors.empty() ? 0 : tensors.back().offset + tensors.back().bytes;
}

Error type_error(std::string_view key, const GgufValue& value, const char* wanted) {
  static constexpr const char* kHave[] = {
      "an unsigned integer", "a signed integer", "a float", "a bool", "a string", "an array"};
  return Error{Code::kBadRequest, fmt::format("metadata key {} is {}, wanted {}", key, kHave[value.index()], wanted)};
}

Result<const GgufValue*> find_value(const std::map<std::string_view, GgufValue>& metadata, std::string_view key) {
  auto found = metadata.find(key);
  if (found == metadata.end()) return fail(Code::kNotFound, fmt::format("metadata key {} is missing", key));
  return &found->second;
}

}  // namespace

const TensorTypeInfo* tensor_type_info(TensorType type) {
  // Every type of the public format, so that a header can be sized; which ones can be computed with is for bones to
  // say.
  static constexpr TensorTypeInfo kTypes[] = {
      {"F32", 1, 4},      {"F16", 1, 2},        {"Q4_0", 32, 18},    {"Q4_1", 32, 20},     {nullptr, 0, 0},
      {nullptr, 0, 0},    {"Q5_0", 32, 22},     {"Q5_1", 32, 24},    {"Q8_0", 32, 34},     {"Q8_1", 32, 36},
      {"Q2_K", 256, 84},  {"Q3_K", 256, 110},   {"Q4_K", 256, 144},  {"Q5_K", 256, 176},   {"Q6_K", 256, 210},
      {"Q8_K", 256, 292}, {"IQ2_XXS", 256, 66}, {"IQ2_XS", 256, 74}, {"IQ3_XXS", 256, 98}, {"IQ1_S", 256, 50},
      {"IQ4_NL", 32, 18}, {"IQ3_S", 256, 110},  {"IQ2_S", 256, 82},  {"IQ4_XS", 256, 136}, {"I8", 1, 1},
      {"I16", 1, 2},      {"I32", 1, 4},        {"I64", 1, 8},       {"F64", 1, 8},        {"IQ1_M", 256, 56},
      {"BF16", 1, 2},     {nullptr, 0, 0},      {nullptr, 0, 0},     {nullptr, 0, 0},      {"TQ1_0", 256, 54},
      {"TQ2_0", 256, 66}, {nullptr, 0, 0},      {nullptr, 0, 0},     {nullptr, 0, 0},      {"MXFP4", 32, 17},
      {"NVFP4", 64, 36},  {"Q1_0", 128, 18},    {"Q2_0", 64, 18},
  };
  const auto index = static_cast<uint32_t>(type);
  if (index >= std::size(kTypes) || !kTypes[index].name) return nullptr;
  return &kTypes[index];
}

Result<std::vector<std::string_view>> GgufArray::strings() const {
  if (type != GgufType::kString)
    return fail(Code::kBadRequest, fmt::format("array of {}, wanted strings", type_name(static_cast<uint32_t>(type))));
  std::vector<std::string_view> out;
  out.reserve(count);
  Cursor in(raw);
  for (uint64_t i = 0; i < count; ++i) {
    TIE_TRY(std::string_view text, in.string(raw.size(), "string in array"));
    out.push_back(text);
  }
  return out;
}

Result<std::vector<int64_t>> GgufArray::integers() const {
  const size_t element = scalar_bytes(static_cast<uint32_t>(type));
  if (element == 0 || type == GgufType::kF32 || type == GgufType::kF64)
    return fail(Code::kBadRequest, fmt::format("array of {}, wanted integers", type_name(static_cast<uint32_t>(type))));
  std::vector<int64_t> out;
  out.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const GgufValue value = load_scalar(type, raw.data() + i * element);
    if (const auto* u = std::get_if<uint64_t>(&value)) {
      if (*u > kMaxSigned) return fail(Code::kOutOfRange, "array holds an integer over 63 bits");
      out.push_back(static_cast<int64_t>(*u));
    } else if (const auto* s = std::get_if<int64_t>(&value)) {
      out.push_back(*s);
    } else {
      out.push_back(std::get<bool>(value) ? 1 : 0);
    }
  }
  return out;
}

Result<std::vector<double>> GgufArray::numbers() const {
  if (type == GgufType::kF32 || type == GgufType::kF64) {
    const size_t element = scalar_bytes(static_cast<uint32_t>(type));
    std::vector<double> out;
    out.reserve(count);
    for (uint64_t i = 0; i < count; ++i) out.push_back(std::get<double>(load_scalar(type, raw.data() + i * element)));
    return out;
  }
  TIE_TRY(std::vector<int64_t> whole, integers());
  return std::vector<double>(whole.begin(), whole.end());
}

Result<Gguf> Gguf::parse(ByteView file, bool header_only, const GgufLimits& limits) {
  Cursor in(file);
  TIE_TRY(ByteView magic, in.take(4, "magic"));
  if (as_text(magic) != "GGUF") return fail(Code::kCorrupt, "not a GGUF file (wrong magic)");
  Gguf out;
  TIE_TRY(out.version_, in.integer<uint32_t>("version"));
  if ((out.version_ & 0xffff) == 0 && out.version_ != 0)
    return fail(Code::kUnsupportedFeature, "big-endian GGUF files are not supported");
  if (out.version_ != 2 && out.version_ != 3)
    return fail(Code::kUnsupportedFeature, fmt::format("GGUF version {} is not supported (2 and 3 are)", out.version_));
  TIE_TRY(uint64_t n_tensors, in.integer<uint64_t>("tensor count"));
  TIE_TRY(uint64_t n_entries, in.integer<uint64_t>("metadata count"));
  if (n_entries > limits.max_metadata_entries || n_entries > in.left() / kMinEntryBytes)
    return fail(Code::kTooLarge, fmt::format("{} metadata entries do not fit into the file or the limit", n_entries));
  if (n_tensors > limits.max_tensors || n_tensors > in.left() / kMinTensorBytes)
    return fail(Code::kTooLarge, fmt::format("{} tensors do not fit into the file or the limit", n_tensors));

  for (uint64_t i = 0; i < n_entries; ++i) {
    TIE_TRY(std::string_view key, in.string(kMaxKeyBytes, "metadata key"));
    if (key.empty()) return fail(Code::kCorrupt, "a metadata key is empty");
    TIE_TRY(uint32_t type, in.integer<uint32_t>("value type"));
    auto value = read_value(in, type, limits);
    if (!value) return std::unexpected(std::move(value.error()).context(fmt::format("metadata key {}", key)));
    if (!out.metadata_.emplace(key, *value).second)
      return fail(Code::kCorrupt, fmt::format("metadata key {} appears twice", key));
  }
  TIE_TRY(const uint64_t alignment, alignment_of(out.metadata_));

  out.tensors_.reserve(n_tensors);
  for (uint64_t i = 0; i < n_tensors; ++i) {
    auto tensor = read_tensor(in);
    if (!tensor) return std::unexpected(std::move(tensor.error()).context(fmt::format("tensor {}", i)));
    if (!out.by_name_.emplace(tensor->name, i).second)
      return fail(Code::kCorrupt, fmt::format("tensor {} appears twice", tensor->name));
    out.tensors_.push_back(std::move(*tensor));
  }
  TIE_TRY(const uint64_t data_bytes, check_layout(out.tensors_, alignment));

  const uint64_t data_start = (in.position() + alignment - 1) & ~(alignment - 1);
  if (data_start <= file.size() && data_bytes <= file.size() - data_start) {
    out.data_ = file.subspan(data_start);
  } else if (!header_only && data_bytes > 0) {
    return fail(Code::kCorrupt, fmt::format("tensor data needs {} bytes from byte {}, the file has {}", data_bytes,
                                            data_start, file.size()));
  }
  return out;
}

const GgufTensor* Gguf::find_tensor(std::string_view name) const {
  auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

ByteView Gguf::tensor_data(const GgufTensor& tensor) const {
  if (tensor.offset > data_.size() || tensor.bytes > data_.size() - tensor.offset) return {};
  return data_.subspan(tensor.offset, tensor.bytes);
}

Result<uint64_t> Gguf::get_u64(std::string_view key) const {
  TIE_TRY(const GgufValue* value, find_value(metadata_, key));
  if (const auto* u = std::get_if<uint64_t>(value)) return *u;
  const auto* s = std::get_if<int64_t>(value);
  if (!s) return std::unexpected(type_error(key, *value, "an unsigned integer"));
  if (*s < 0) return fail(Code::kBadRequest, fmt::format("metadata key {} is negative", key));
  return static_cast<uint64_t>(*s);
}

Result<double> Gguf::get_f64(std::string_view key) const {
  TIE_TRY(const GgufValue* value, find_value(metadata_, key));
  if (const auto* f = std::get_if<double>(value)) return *f;
  if (const auto* u = std::get_if<uint64_t>(value)) return static_cast<double>(*u);
  if (const auto* s = std::get_if<int64_t>(value)) return static_cast<double>(*s);
  return std::unexpected(type_error(key, *value, "a number"));
}

Result<bool> Gguf::get_bool(std::string_view key) const {
  TIE_TRY(const GgufValue* value, find_value(metadata_, key));
  if (const auto* b = std::get_if<bool>(value)) return *b;
  return std::unexpected(type_error(key, *value, "a bool"));
}

Result<std::string_view> Gguf::get_string(std::string_view key) const {
  TIE_TRY(const GgufValue* value, find_value(metadata_, key));
  if (const auto* text = std::get_if<std::string_view>(value)) return *text;
  return std::unexpected(type_error(key, *value, "a string"));
}

Result<GgufArray> Gguf::get_array(std::string_view key) const {
  TIE_TRY(const GgufValue* value, find_value(metadata_, key));
  if (const auto* array = std::get_if<GgufArray>(value)) return *array;
  return std::unexpected(type_error(key, *value, "an array"));
}

}  // namespace tie::model_files
