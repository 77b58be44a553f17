// States that are stored in fewer bytes than float32 and rounded at random: rounding to nearest would lose a moment's
// small relative changes every time. Included between simd_begin.h and simd_end.h.
//
// A codec is a class with
//   using Element = ...;               // of the codes
//   static constexpr bool kScaled;     // whether a block has a scale
//   using Codes = ...;                 // those of a group, of kGroup vectors
//   static Codes load_codes(const Element*);
//   static F32 scale(std::uint8_t);                           // of a block, as it is stored
//   template <bool kNonNegative, int kPair>                   // whether the state is never negative; which two vectors
//   static void decode(Codes, F32 scale, F32* pair);
//   template <bool kNonNegative, int kState>                  // states have random bits of their own
//   static void encode(Element*, const F32 (&values)[kGroup], F32 factor, const U32 (&random)[kGroup]);
// and, with a scale,
//   template <bool kNonNegative>
//   static void see(U32& largest, F32 value);                 // of all values of a block, then
//   template <bool kNonNegative>
//   static F32 factor(U32 largest, std::uint8_t* scale);      // the scale to keep, and encode's factor

namespace accel::cpu::ACCEL_TARGET_NAMESPACE {
namespace {

// Vectors in a group: where codes are bytes, those of a group fill one vector.
constexpr int kGroup = 4;

ACCEL_INLINE U32 lane_numbers() {
  U32 lanes = {};
  for (int i = 0; i < kLanes; ++i) {
    lanes[i] = i;
  }
  return lanes;
}

// Random bits that depend on key and position alone, for the vectors of a block one after another. Each block has a key
// of its own. Within it a Weyl sequence that begins at one half of the key goes through an xorshift, the other half and
// a multiplication (as in Wellons' 32-bit hashes, 2018). The last bits of a product are its worst ones: none of the
// lowest three is used in 8 bits.
class RandomBits {
 public:
  // For the block that begins at this element.
  RandomBits(std::uint64_t random_key, std::int64_t element) {
    const std::uint64_t key = mixed(random_key + static_cast<std::uint64_t>(element) * 0x9e3779b97f4a7c15u);
    weyl_ = lane_numbers() * kWeyl + static_cast<std::uint32_t>(key);
    key_ = broadcast_bits(static_cast<std::uint32_t>(key >> 32));
  }
  ACCEL_INLINE U32 next() {
    const U32 x = weyl_;
    weyl_ += static_cast<std::uint32_t>(kLanes) * kWeyl;
    return (x ^ (x >> 16) ^ key_) * 0x7feb352du;
  }
  // The random bits of a group.
  ACCEL_INLINE void next(U32 (&bits)[kGroup]) {
    for_each<kGroup>([&](auto j) ACCEL_LAMBDA { bits[j.value] = next(); });
  }

 private:
  static constexpr std::uint32_t kWeyl = 0x9e3779b9u;  // 2^32 over the golden ratio

  U32 weyl_, key_;
};

// bfloat16: the dropped 16 bits are the probability of rounding away from zero. Random bits 0 to 15 decide.
struct StochasticBFloat16 {
  using Element = BFloat16;
  static constexpr bool kScaled = false;
  using Codes = const BFloat16*;

  static ACCEL_INLINE Codes load_codes(const BFloat16* codes) { return codes; }
  template <bool kNonNegative, int kPair>
  static ACCEL_INLINE void decode(Codes codes, F32, F32* pair) {
    pair[0] = load(codes + 2 * kPair * kLanes);
    pair[1] = load(codes + (2 * kPair + 1) * kLanes);
  }
  template <bool kNonNegative, int kState>
  static ACCEL_INLINE void encode(BFloat16* codes, const F32 (&values)[kGroup], F32, const U32 (&random)[kGroup]) {
    for_each<kGroup / 2>([&](auto pair) ACCEL_LAMBDA {
      constexpr int j = 2 * pair.value;
      U32 first = rounded<kState>(values[j], random[j]);
      U32 second = rounded<kState>(values[j + 1], random[j + 1]);
      if (__builtin_expect(is_any_nan(values[j], values[j + 1]), 0)) {
        first = values[j] == values[j] ? first : quiet_nan(values[j]);
        second = values[j + 1] == values[j + 1] ? second : quiet_nan(values[j + 1]);
      }
      store_upper_halves(codes + j * kLanes, first, second);
    });
  }

 private:
  template <int kState>
  static ACCEL_INLINE U32 rounded(F32 value, U32 random) {
    return (U32)value + (kState == 0 ? random & 0xffffu : random >> 16);
  }
};

// 8 bits, on a scale that is linear at zero and logarithmic far from it. A value's place is its magnitude, divided by
// the block's scale, plus kZero; a code is the part of that float where places differ: the lower 3 bits of the
// exponent, or 4 where there is no sign, and the first 4 of the fraction. So code 0 is zero, with a sign or without it;
// the next ones are kZero / 16 apart, which is 2^-11 or without a sign 2^-19, and then a sixteenth to a 32nd of what
// they stand for. The largest place is 31/16. Between two codes a value becomes the upper one with the probability of
// its distance from the lower one: random bits 3 to 18 are added to the place, and what is below the code is cut off.
// (The second state's are bits 16 to 31: three bits that are the first of one and the last of the other.)
//
// The scale is the smallest power of two with which the block's largest magnitude has a place, stored as the exponent
// of that float. So codes stand for the same values from step to step, and a value that does not change is not rounded
// again: the deviation of a moment in many steps is 0.6 times that with a scale of 24 bits and one bit of the fraction
// less (docs/internals/measurements.md).
//
// A non-negative state never becomes code 0: it is a divisor, and a moment divided by zero would change the parameter
// without limit. A value that is not finite, or above 1.6e38, makes the whole block NaN. A block whose values are all
// below 1.1e-38 counts as zero. So a second moment becomes zero only in the first steps of Adam, where all gradients
// are below 3e-18. With an eps of 1e-15 that does not matter.
struct Blockwise8Bit {
  using Element = std::uint8_t;
  static constexpr bool kScaled = true;
  using Codes = Bytes;

  static ACCEL_INLINE Codes load_codes(const std::uint8_t* codes) { return in_lanes(load_bits<Bytes>(codes)); }

  static ACCEL_INLINE F32 scale(std::uint8_t exponent) {
    return (F32)broadcast_bits(exponent == kNotFinite ? 0x7fc00000u : static_cast<std::uint32_t>(exponent) << 23);
  }

  template <bool kNonNegative, int kPair>
  static ACCEL_INLINE void decode(Codes codes, F32 scale, F32* pair) {
    // The upper words of floats: kZero with the sign, and the code's magnitude.
    Words zero = Words{} + static_cast<std::uint16_t>(kZeroBits<kNonNegative> >> 16);
    Codes magnitude = codes;
    if (!kNonNegative) {
      zero |= (kPair == 0 ? raised_low(codes) : raised_high(codes)) & static_cast<std::uint16_t>(0x8000);
      magnitude &= static_cast<std::uint8_t>(0x7f);
    }
    const Words place = (kPair == 0 ? widened_low(magnitude) : widened_high(magnitude)) << (kDroppedBits - 16) | zero;
    pair[0] = ((F32)raised_low(place) - (F32)raised_low(zero)) * scale;
    pair[1] = ((F32)raised_high(place) - (F32)raised_high(zero)) * scale;
  }

  template <bool kNonNegative>
  static ACCEL_INLINE void see(U32& largest, F32 value) {
    const U32 bits = magnitude_of<kNonNegative>(value);  // as integers, so that NaN is the largest
    largest = bits > largest ? bits : largest;
  }

  template <bool kNonNegative>
  static ACCEL_INLINE F32 factor(U32 largest, std::uint8_t* scale) {
    // The fraction of the largest magnitude that fits, 31/16 - kZero: a larger one carries into the exponent.
    constexpr std::uint32_t kFraction = 0x780000u - (1u << (23 + kZeroExponent<kNonNegative>));
    std::uint32_t bits = 0;
    for (int i = 0; i < kLanes; ++i) {
      bits = largest[i] > bits ? largest[i] : bits;
    }
    const std::uint32_t exponent = (bits + (0x7fffffu - kFraction)) >> 23;
    const bool is_finite = exponent < 254;
    *scale = static_cast<std::uint8_t>(is_finite ? exponent : kNotFinite);
    return (F32)broadcast_bits(is_finite && exponent > 0 ? (254 - exponent) << 23 : 0u);
  }

  template <bool kNonNegative, int kState>
  static ACCEL_INLINE void encode(std::uint8_t* codes, const F32 (&values)[kGroup], F32 factor,
                                  const U32 (&random)[kGroup]) {
    U32 code[kGroup];
    for_each<kGroup>([&](auto j) ACCEL_LAMBDA {
      const F32 place =
          multiply_add((F32)magnitude_of<kNonNegative>(values[j.value]), factor, broadcast(kZero<kNonNegative>));
      const U32 bits = (kState == 0 ? random[j.value] : random[j.value] >> 13) & 0x7fff8u;
      code[j.value] = ((U32)place + bits) >> kDroppedBits;
    });
    constexpr std::uint16_t kMask = kNonNegative ? 0xff : 0x7f;
    Bytes result = packed_unsigned(packed(code[0], code[1]) & kMask, packed(code[2], code[3]) & kMask);
    if (kNonNegative) {
      const Bytes one = Bytes{} + static_cast<std::uint8_t>(1);
      result = result > one ? result : one;
    } else {
      const Bytes signs = packed(packed((U32)values[0], (U32)values[1]), packed((U32)values[2], (U32)values[3]));
      result |= signs & static_cast<std::uint8_t>(0x80);
    }
    store_bits(codes, in_order(result));
  }

 private:
  static constexpr int kDroppedBits = 19;  // of a float's fraction of 23
  static constexpr std::uint8_t kNotFinite = 255;
  static constexpr std::uint32_t kMagnitudeBits = 0x7fffffffu;
  template <bool kNonNegative>
  static constexpr int kZeroExponent = kNonNegative ? -15 : -7;
  template <bool kNonNegative>
  static constexpr float kZero = kNonNegative ? 0x1p-15f : 0x1p-7f;
  template <bool kNonNegative>
  static constexpr std::uint32_t kZeroBits = (127 + kZeroExponent<kNonNegative>) << 23;  // of the float kZero

  template <bool kNonNegative>
  static ACCEL_INLINE U32 magnitude_of(F32 value) {
    return kNonNegative ? (U32)value : (U32)value & kMagnitudeBits;
  }
};

}  // namespace
}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE
