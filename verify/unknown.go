package verify

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// unknownRoundings returns what is not known of the reference by its manifest. In float32 fused operations round as
// others do. An engine declares its arithmetic.
func (j *job) unknownRoundings() unknownRoundings {
	r := &j.pack.Manifest.Reference
	if j.pack.IsTrace() {
		return unknownRoundings{}
	}
	return unknownRoundings{
		attention: !slices.Contains([]string{"", pack.Eager, pack.Sdpa}, r.Attention),
		experts:   !slices.Contains([]string{"", pack.Eager, pack.GroupedMM, pack.BatchedMM}, r.Experts),
		fused:     j.pack.DType != tensor.F32 && (r.Compiled || len(r.Replaced) > 0) && !j.recognises,
	}
}

// roundingExplains reports whether no element of x is off by more than the share of its size up to which a stage says
// nothing (see bounds.Blindness). For 16 bits that is an eighth, at least 16 units of BF16: roundings of an operation's
// parts make a few. An element has at least the size of its row's RMS, for it may be a difference of larger parts. A
// row has at least an eighth of the RMS of all.
func roundingExplains(x *bounds.Value, want []float32, rows *bounds.Rows) bool {
	width, share := x.Width(), bounds.Blindness(x.DType)
	least := bounds.RMS(rows.Gather(want, width)) / 8
	for _, r := range rows.Compared {
		golden := want[r*width : (r+1)*width]
		size := max(bounds.RMS(golden), least)
		for i, y := range x.Row(r) {
			g := float64(golden[i])
			if !(math.Abs(float64(y)-g) <= share*max(size, math.Abs(g))) { // nor is NaN explained
				return false
			}
		}
	}
	return true
}

// excused reports whether a stage is left open for a rounding that is not known.
func excused(c report.Check) bool { return c.Status == report.UnknownRounding }

// unknownReasons names what is not known of the reference's roundings. Fused code matters only where it shows.
func (j *job) unknownReasons(checks []report.Check) (reasons []string) {
	unknown, r := j.unknownRoundings(), &j.pack.Manifest.Reference
	const ran = "the reference ran with %s %s, whose rounding errors are not known: record the pack with "
	if unknown.attention {
		reasons = append(reasons, fmt.Sprintf(ran+"eager or sdpa", "attn_implementation", text.Quote(r.Attention)))
	}
	if unknown.experts {
		reasons = append(reasons, fmt.Sprintf(ran+"eager, grouped_mm or batched_mm", "experts_implementation",
			text.Quote(r.Experts)))
	}
	if j.operands == bounds.SomeRounded {
		reasons = append(reasons, "products in TF32: of which products the GPU rounded the operands to 10 bits of mantissa is "+
			"not known: record the pack with torch.backends.cuda.matmul.allow_tf32 off")
	}
	if !unknown.fused || !slices.ContainsFunc(checks, excused) {
		return reasons
	}
	if r.Compiled {
		reasons = append(reasons, "the reference ran code that torch.compile compiled, which may leave roundings out: "+
			"record the pack without torch.compile")
	}
	for _, class := range slices.Sorted(maps.Keys(r.Replaced)) {
		reasons = append(reasons, fmt.Sprintf("the reference ran %s with the code of %s, whose rounding errors are not "+
			"known: record the pack without that", text.Quote(class), text.Quote(r.Replaced[class])))
	}
	return reasons
}

// tf32Words say what was done to the operands of products.
var tf32Words = map[bounds.Operands]string{
	bounds.Nearest:     "operands rounded to TF32, 10 bits of mantissa",
	bounds.CutOff:      "operands cut off to TF32, 10 bits of mantissa",
	bounds.SomeRounded: "operands may be rounded to TF32, 10 bits of mantissa",
}
