package verify

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// halfAndTwice are the factors that are tried.
var halfAndTwice = []float64{0.5, 2}

// ignoresEps reports whether a stage is a norm whose eps is config.LatentEps, whatever config.json has.
func ignoresEps(name string) bool {
	kind := pack.Parse(name).Within
	return kind == pack.InAttention(table.QALayernorm) || kind == pack.InAttention(table.KVALayernorm)
}

// rotationTells returns the numbers with half or twice of which RoPE's tables, or the scale of scores, are different
// ones.
func (j *job) rotationTells(compressed bool) map[tell]bool {
	c, tells, o := j.model.Config, map[tell]bool{}, j.modelOptions()
	for _, n := range rotationNumbers(c, compressed) {
		for _, by := range halfAndTwice {
			if !model.RotatesAlike(c, n.With(c, by*n.Value(c)), compressed, j.in.Seq, &o) {
				tells[tell{-1, n.Key, by}] = true
			}
		}
	}
	return tells
}

// groupKeys are the numbers of groups of experts.
func groupKeys(c *config.Config) []string {
	if c.MoE.NRoutedExperts == 0 || !c.LimitsGroups() {
		return nil
	}
	return []string{"n_group", "topk_group"}
}

// otherGroupCount returns c with another number of groups; nil if the reference does not run with it.
func otherGroupCount(c *config.Config, key string, by float64) *config.Config {
	was, _ := strconv.ParseFloat(string(c.Value(key)), 64)
	other, err := c.Override(map[string]jsontext.Value{key: jsontext.Value(strconv.Itoa(int(was * by)))})
	if err == nil {
		other, err = other.As(c.Reference)
	}
	if err != nil {
		return nil
	}
	return other
}

// rotationNumbers are the numbers of RoPE's tables in layers without entries, or in those with entries.
func rotationNumbers(c *config.Config, compressed bool) []config.Number {
	list, s := config.RotationNumbers(c, compressed), c.RoPE.RopeScaling
	if compressed {
		s = c.RoPE.CompressRopeScaling
	}
	if s != nil && s.Type == "dynamic" {
		return list[:1] // it begins where the pack may not reach: see unexercised
	}
	return list
}

// triedNumbers lists the numbers of c that others are tried of, in either mode; those that operations read in local
// mode.
func triedNumbers(c *config.Config, mode report.Mode) []string {
	keys := []string{}
	if mode == report.Local {
		if keys = append(keys, rmsNormEps); c.HyperConnections.HCMult > 0 {
			keys = append(keys, hcEps, hcSinkhornIters)
		}
	}
	var numbers []config.Number
	if !c.BlockOnly() {
		numbers = rotationNumbers(c, false)
	}
	if c.Windowed() {
		numbers = append(numbers, rotationNumbers(c, true)...)
	}
	for _, n := range numbers {
		keys = append(keys, n.Key)
	}
	return append(keys, groupKeys(c)...)
}
