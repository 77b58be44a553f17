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

// Random bits that depend on key and position alone, for the vectors of a block one after another. Each block has a key of
// its own. Within it a Weyl sequence that begins at one half of the key goes through an xorshift, the other half and a
// multiplication (as in Wellons' 32-bit hashes, 2018). The last bits of a product are its worst ones: none of the lowest
// four is used in 8 bits.
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

 private:
  static constexpr std::uint32_t kWeyl = 0x9e3779b9u;  // 2^32 over the golden ratio

  U32 weyl_, key_;
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

// 8 bits, on a scale that is linear at zero and logarithmic far from it. A value's place is its magnitude, divided by the
// block's scale, plus kZero; a code is the part of that float where places differ: the lower 4 bits of the exponent, or 5
// where there is no sign, and the first 3 of the fraction. So code 0 is zero, the next ones are kZero / 8 apart, which is
// 2^-18 or without a sign 2^-34, and then an eighth to a sixteenth of what they stand for. The largest place is 15/8: the
// scale maps the block's largest magnitude to it. Between two codes a value becomes the upper one with the probability of
// its distance from the lower one: random bits 4 to 19 are added to the place, and what is below the code is cut off.
// (The second state's are bits 16 to 31: four bits that are the first of one and the last of the other.)
//
// A non-negative state never becomes code 0: it is a divisor, and a moment over a lost divisor would be a leap. A value
// that is not finite makes the whole block NaN. A block counts as zero whose scale would be below kLeastScale, with which
// code 1 is float's smallest number. So a second moment is lost after all in a block where it is below 4.5e-35 everywhere,
// in the first steps of Adam where all gradients are below 2e-16. Beside an eps of 1e-15 that does not matter.
struct Blockwise8Bit {
  using Element = std::uint8_t;
  static constexpr bool kScaled = true;
  static constexpr int kRandomShift = 12;

  template <bool kNonNegative>
  static ACCEL_INLINE F32 decode(const std::uint8_t* codes, F32 scale) {
    const U32 code = load_signed_bytes(codes) << kDroppedBits;
    const std::uint32_t mask = (kNonNegative ? 0xffu : 0x7fu) << kDroppedBits;
    const F32 place = (F32)((code & mask) | kZeroBits<kNonNegative>);
    const F32 magnitude = (place - kZero<kNonNegative>) * scale;
    return kNonNegative ? magnitude : (F32)select(kMagnitudeBits, (U32)magnitude, code);
  }

  template <bool kNonNegative>
  static ACCEL_INLINE void see(U32& largest, F32 value) {
    const U32 bits = magnitude_of<kNonNegative>(value);  // as integers, so that NaN is larger than all else
    largest = bits > largest ? bits : largest;
  }

  template <bool kNonNegative>
  static ACCEL_INLINE F32 factor(U32 largest, float* scale) {
    constexpr float kLargest = 1.875f - kZero<kNonNegative>;
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
    if (most < kLeastScale<kNonNegative> * kLargest) {
      *scale = 0.0f;
      return F32{};
    }
    *scale = most / kLargest;
    return broadcast(kLargest / most);
  }

  template <bool kNonNegative>
  static ACCEL_INLINE void encode(std::uint8_t* codes, F32 value, F32 factor, U32 random) {
    const F32 place =
        multiply_add((F32)magnitude_of<kNonNegative>(value), factor, broadcast(kZero<kNonNegative>));
    // The largest's place is rounded, too; as the last four random bits are missing, it is not carried to the next code.
    const U32 code = ((U32)place + (random & 0xffff0u)) >> kDroppedBits;
    if (kNonNegative) {
      const U32 one = broadcast_bits((kZeroBits<kNonNegative> >> kDroppedBits) + 1);
      store_bytes(codes, code > one ? code : one);
    } else {
      store_bytes(codes, select(0x7fu, code, (U32)value >> 24));
    }
  }

 private:
  static constexpr int kDroppedBits = 20;  // of a float's fraction of 23
  static constexpr std::uint32_t kMagnitudeBits = 0x7fffffffu;
  template <bool kNonNegative>
  static constexpr float kZero = kNonNegative ? 0x1p-31f : 0x1p-15f;
  template <bool kNonNegative>
  static constexpr float kLeastScale = kNonNegative ? 0x1p-115f : 0x1p-126f;
  template <bool kNonNegative>
  static constexpr std::uint32_t kZeroBits = kNonNegative ? 0x30000000u : 0x38000000u;  // of the float kZero

  template <bool kNonNegative>
  static ACCEL_INLINE U32 magnitude_of(F32 value) {
    return kNonNegative ? (U32)value : (U32)value & kMagnitudeBits;
  }
};

}  // namespace
}  // namespace accel::cpu::ACCEL_TARGET_NAMESPACE
