// States that are stored in fewer bytes than float32 has, and rounded at random: a moment's small
// relative changes would be lost by rounding to nearest, every time. Included between simd_begin.h and
// simd_end.h.
//
// A codec is a class with
//   using Element = ...;               // of the codes
//   static constexpr bool kScaled;     // whether a block has a scale
//   static constexpr int kRandomShift; // from one state's random bits to the next one's
//   template <bool kNonNegative>       // whether the state is never negative
//   static F32 decode(const Element*, F32 scale);
//   static void encode(Element*, F32 value, F32 factor, U32 random);   // random bits, shifted
// and, with a scale,
//   static void see(U32& largest, F32 value);                          // of all values of a block, then
//   static F32 factor(U32 largest, float* scale);                      // the scale to keep, and encode's factor

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {
namespace {

ACCEL_INLINE U32 lane_numbers() {
  U32 lanes = {};
  for (int i = 0; i < kLanes; ++i) {
    lanes[i] = i;
  }
  return lanes;
}

// Random bits that depend on key and position alone: a multiply-xorshift mix of 32 bits (constants of
// Wellons' "lowbias32", 2018), keyed before and in between.
struct RandomBits {
  U32 first_key, second_key, lanes;

  ACCEL_INLINE RandomBits(std::uint64_t key, std::int64_t element) {
    // Blocks never cross a multiple of 2^32, so the upper half of the index goes into the key.
    key += static_cast<std::uint64_t>(element >> 32) * 0x9e3779b97f4a7c15u;
    first_key = broadcast_bits(static_cast<std::uint32_t>(key));
    second_key = broadcast_bits(static_cast<std::uint32_t>(key >> 32));
    lanes = lane_numbers() + static_cast<std::uint32_t>(element);
  }
  ACCEL_INLINE U32 operator()(int offset) const {
    U32 x = (lanes + static_cast<std::uint32_t>(offset)) ^ first_key;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= (x >> 15) ^ second_key;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
  }
};

// bfloat16: the dropped 16 bits are the probability of rounding away from zero. Random bits 0 to 15 decide.
struct StochasticBFloat16 {
  using Element = BFloat16;
  static constexpr bool kScaled = false;
  static constexpr int kRandomShift = 16;

  template <bool kNonNegative>
  static ACCEL_INLINE F32 decode(const BFloat16* codes, F32) {
    return load(codes);
  }
  template <bool kNonNegative>
  static ACCEL_INLINE void encode(BFloat16* codes, F32 value, F32, U32 random) {
    const U32 bits = (U32)value;
    const U32 quiet = bits | 0x00400000u;
    store_bits(codes, narrow((value != value ? quiet : bits + (random & 0xffffu)) >> 16));
  }
};

// 8 bits: the upper bits of an IEEE half, times the block's scale. With a sign a code is sign, 4 bits of
// exponent and 3 of fraction, magnitudes from 2^-17 (the half's subnormals, 2^-17 apart) to 15/8; without,
// 5 bits of exponent and 3 of fraction, from 2^-17 to 15/8 * 2^15. Code 0 is zero. A value between two codes
// becomes the upper one with the probability of its distance from the lower one, by random bits 4 to 19: the same
// place in a float's fraction, so that noise of a code's width is two instructions away. (The second state's are
// bits 16 to 31: four bits that are the first of one and the last of the other.) The scale maps the block's largest
// magnitude to the largest code. A non-negative state never becomes code 0: it is a divisor, and a moment over a lost divisor
// would be a leap. A value that is not finite makes the whole block NaN; a block whose largest magnitude is
// below 2^-126 times the largest code's counts as zero. So a whole block of a non-negative state is lost after all
// where no value reaches 2^-126 * 61440 = 7e-34, squares of gradients below some 3e-17: beside an eps of 1e-8 it does
// not matter, with eps = 0 the moment is divided by zero.
struct Blockwise8Bit {
  using Element = std::uint8_t;
  static constexpr bool kScaled = true;
  static constexpr int kRandomShift = 12;

  template <bool kNonNegative>
  static constexpr float kLargest = kNonNegative ? 61440.0f : 1.875f;

  template <bool kNonNegative>
  static ACCEL_INLINE F32 decode(const std::uint8_t* codes, F32 scale) {
    const U16 code = load_bytes(codes);
    const U16 sign = (code << 8) & static_cast<std::uint16_t>(0x8000);
    const U16 magnitude = code << 7;
    return from_half(kNonNegative ? magnitude : (magnitude & static_cast<std::uint16_t>(0x3f80)) | sign) * scale;
  }

  template <bool kNonNegative>
  static ACCEL_INLINE void see(U32& largest, F32 value) {
    // As integers, so that NaN is larger than all else.
    const U32 magnitude = kNonNegative ? (U32)value : (U32)value & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }

  template <bool kNonNegative>
  static ACCEL_INLINE F32 factor(U32 largest, float* scale) {
    std::uint32_t bits = 0;
    for (int i = 0; i < kLanes; ++i) {
      bits = largest[i] > bits ? largest[i] : bits;
    }
    float most;
    __builtin_memcpy(&most, &bits, sizeof(most));
    if (bits >= 0x7f800000u) {
      *scale = __builtin_nanf("");
      return F32{};
    }
    if (most < 1.17549435e-38f * kLargest<kNonNegative>) {
      *scale = 0.0f;
      return F32{};
    }
    *scale = most / kLargest<kNonNegative>;
    return broadcast(kLargest<kNonNegative> / most);
  }

  template <bool kNonNegative>
  static ACCEL_INLINE void encode(std::uint8_t* codes, F32 value, F32 factor, U32 random) {
    const U32 bits = (U32)(value * factor);
    const U32 magnitude = kNonNegative ? bits : bits & 0x7fffffffu;
    // The power of two at or below the magnitude, or the half's smallest normal, below which codes lie 2^-17 apart as
    // they do above it. With random bits from the eighth of it on, less itself, it is noise below a code's width.
    const U32 least = broadcast_bits(0x38800000u);
    const U32 power = (magnitude > least ? magnitude : least) & 0x7f800000u;
    const F32 noise = (F32)(power | (random & 0x000ffff0u)) - (F32)power;
    // What the largest code's sum reaches is below the next one by 2^-16 of their distance, more than roundings are.
    const U32 sum = (U32)((F32)magnitude + noise);
    const U16 half = to_half_toward_zero((F32)(kNonNegative ? sum : sum | (bits & 0x80000000u)));
    U16 code = half >> 7;
    if (kNonNegative) {
      const U16 one = U16{} + static_cast<std::uint16_t>(1);
      code = code > one ? code : one;
    } else {
      code = (code & static_cast<std::uint16_t>(0x7f)) | ((half >> 8) & static_cast<std::uint16_t>(0x80));
    }
    store_bytes(codes, code);
  }
};

}  // namespace
}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE
