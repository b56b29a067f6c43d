package table

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// invFreqName ends the names of tensors that hold RoPE's inv_freq, which transformers before 4.32 stored.
const invFreqName = ".rotary_emb.inv_freq"

// Follows reports whether the numbers of a tensor follow from c: inv_freq, or a bias that save_pretrained adds to the
// files of a family without one, whose numbers are 0. Tensors of other sizes are not read.
func Follows(c *config.Config, info tensor.Info) bool {
	switch vector := info.DType.Casts() && len(info.Shape) == 1; {
	case strings.HasSuffix(info.Name, invFreqName):
		return vector && info.Shape[0] == c.HeadDim()/2
	case strings.HasSuffix(info.Name, addedBias):
		return vector && FamilyOf(c).Unused(c, info.Name)
	}
	return false
}

// addedBias ends the names of router biases.
const addedBias = ".mlp.gate.e_score_correction_bias"

// Contradiction says that the stored numbers of a tensor that Follows, of dtype d, are others; "" if they are not. Of
// inv_freq the theta that it is of is named if all numbers are of one. Under YaRN, whose frequencies no such file holds,
// nothing is compared.
func Contradiction(c *config.Config, name string, stored []float32, d tensor.DType) string {
	if strings.HasSuffix(name, addedBias) {
		if slices.ContainsFunc(stored, func(v float32) bool { return v != 0 }) {
			return "is not 0: transformers adds it to the scores that experts are chosen by, dsmoe does not"
		}
		return ""
	}
	n, tolerance := c.HeadDim()/2, map[tensor.DType]float64{tensor.BF16: 0x1p-8, tensor.F16: 0x1p-10}[d]+0x1p-20
	is := func(theta float64) bool {
		for i, f := range stored {
			want := math.Pow(theta, -float64(i)/float64(n))
			if !(math.Abs(float64(f)-want) <= tolerance*want+0x1p-25) { // F16's least number
				return false
			}
		}
		return true
	}
	if s := c.RoPE.RopeScaling; s != nil && s.Type == "yarn" || is(c.RoPE.RopeTheta) {
		return ""
	}
	if n > 1 && stored[n-1] > 0 {
		theta := math.Pow(float64(stored[n-1]), -float64(n)/float64(n-1))
		if rounded, _ := strconv.ParseFloat(strconv.FormatFloat(theta, 'g', 3, 64), 64); is(rounded) {
			theta = rounded
		}
		if is(theta) {
			return fmt.Sprintf("is that of rope_theta %g, config.json has %g%s", theta, c.RoPE.RopeTheta, ofConfig)
		}
	}
	return fmt.Sprintf("is not that of config.json, rope_theta %g%s", c.RoPE.RopeTheta, ofConfig)
}

const ofConfig = ": the reference computes RoPE from config.json, and so does dsmoe"
