package gguf

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"dsmoe/model/tensor"
)

// sizeLabel is general.size_label: gguf.size_label of gguf-py, "64x1.2B".
func sizeLabel(tensors []tensor.Info) string {
	shared, expert, experts, stacks := int64(0), int64(0), 0, 0
	for _, info := range tensors {
		n := int64(info.Len())
		if strings.Contains(info.Name, "_exps.") {
			expert += n / int64(max(info.Shape[0], 1))
			experts += info.Shape[0]
			stacks++
		} else {
			shared += n
		}
	}
	if stacks == 0 {
		return rounded(shared)
	}
	return fmt.Sprintf("%dx%s", experts/stacks, rounded(shared+expert))
}

// rounded is gguf-py's model_weight_count_rounded_notation: two digits at least.
func rounded(n int64) string {
	scaled, suffix := float64(n)*1e-3, "K"
	for _, unit := range []struct {
		least  float64
		suffix string
	}{{1e6, "M"}, {1e9, "B"}, {1e12, "T"}} {
		if float64(n) > unit.least {
			scaled, suffix = float64(n)/unit.least, unit.suffix
		}
	}
	digits := len(strings.TrimLeft(strconv.FormatFloat(math.RoundToEven(scaled), 'f', 0, 64), "0"))
	return strconv.FormatFloat(scaled, 'f', max(2-digits, 0), 64) + suffix
}
