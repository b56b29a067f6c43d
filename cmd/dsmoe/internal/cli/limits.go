package cli

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Limits is the flag --limit.
type Limits map[string]float64

// Type names the flag's type in the help.
func (l Limits) Type() string { return "limit" }

// String lists the limits.
func (l Limits) String() string {
	var parts []string
	for _, stage := range slices.Sorted(maps.Keys(l)) {
		parts = append(parts, fmt.Sprintf("%s=%g", stage, l[stage]))
	}
	return strings.Join(parts, ",")
}

// Set adds STAGE=FACTOR.
func (l Limits) Set(setting string) error {
	stage, number, ok := strings.Cut(setting, "=")
	v, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || stage == "" || !(v > 0) || math.IsInf(v, 0) {
		return errors.New("not STAGE=FACTOR, such as mlp.output=2")
	}
	l[stage] = v
	return nil
}
