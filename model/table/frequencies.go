package table

import (
	"fmt"
	"math"
	"strconv"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// InvFreqName ends the names of tensors that hold RoPE's inv_freq, which transformers before 4.32 stored.
const InvFreqName = ".rotary_emb.inv_freq"

// HoldsFrequencies reports whether a tensor has as many numbers as inv_freq of c. Others are not read.
func HoldsFrequencies(c *config.Config, info tensor.Info) bool {
	return info.DType.Casts() && len(info.Shape) == 1 && info.Shape[0] == c.HeadDim()/2
}

// OtherFrequencies says that a stored inv_freq, of dtype d, is not that of c's rope_theta; "" if it is. The theta that it
// is of is named if all numbers are of one. Under YaRN, whose frequencies no such file holds, nothing is compared.
func OtherFrequencies(c *config.Config, stored []float32, d tensor.DType) string {
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
			return fmt.Sprintf("is that of rope_theta %g, config.json has %g", theta, c.RoPE.RopeTheta)
		}
	}
	return fmt.Sprintf("is not that of config.json, rope_theta %g", c.RoPE.RopeTheta)
}
