package table

import (
	"slices"
	"strings"
)

// familyV41 is the names of DeepSeek-V4.1 as far as they are known: those that it has in common with DeepSeek-V4. No
// shape is known to be right.
var familyV41 = named(Family{
	ModelTypes: []string{"deepseek_v41"},
	Unknown: []string{"mtp.", "vision.", "aligner.", "image_", ".attn.compressor.", ".attn.indexer.", ".engram.",
		".ffn.gate.bias_vl"},
})

// named fills in the rows of DeepSeek-V4 that the family has, without conditions, shapes and GGUF's names.
func named(f Family) Family {
	names := make(map[string]string, len(v4Rows))
	all := v4Names[0].names
	for _, p := range v4Rows {
		if row := p.Row; !slices.Contains([]Module{Compressor, Indexer, HCHead}, row.Module) && row.Role != TID2EID {
			row.When, row.Shape = nil, nil
			f.Rows = append(f.Rows, row)
			names[row.Name] = all[row.Name]
		}
	}
	f.Namings = []Naming{{Name: "published", Whose: "a published name", names: names, published: true}}
	f.spelled = spellings(f.Namings)
	return f
}

// HasUnknown reports whether the family has tensors of such names, but it is not known which.
func (f *Family) HasUnknown(stored string) bool {
	return slices.ContainsFunc(slices.Concat(f.Unknown, f.Opaque), func(part string) bool {
		return strings.HasPrefix(stored, part) || part[0] == '.' && strings.Contains(stored, part)
	})
}
