package gguf

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
)

// TestMixturesAreLlamas: the types that scripts/gguf_check.py --types had llama.cpp's quantiser choose, of
// models with grouped queries, with eight experts, with a tied head and rows that are no whole blocks, and
// with latent attention.
func TestMixturesAreLlamas(t *testing.T) {
	paths, err := filepath.Glob("testdata/mixtures/*.json")
	require.NoError(t, err)
	require.Len(t, paths, 4)
	for _, path := range paths {
		f, err := os.Open(path)
		require.NoError(t, err)
		defer f.Close()
		c, err := config.Parse(f)
		require.NoError(t, err)
		var infos []tensor.Info
		for s := range table.FamilyOf(c).Slots(c) {
			infos = append(infos, s.Info(tensor.F32))
		}
		var lines []string
		for _, word := range Format().Dialect.Types {
			lines = append(lines, typeLines(t, c, infos, word)...)
		}
		want, err := os.ReadFile(strings.TrimSuffix(path, ".json") + ".txt")
		require.NoError(t, err)
		require.Equal(t, string(want), strings.Join(lines, "\n")+"\n", path)
	}
}

// typeLines has a line for each kind of tensor and type of a mixture, with the layers.
func typeLines(t *testing.T, c *config.Config, infos []tensor.Info, word string) []string {
	made, wrong := arrange(c, infos, word)
	require.Empty(t, wrong)
	layers := map[string]string{}
	for _, x := range made {
		name, layer := x.Name, 0
		if n, _ := fmt.Sscanf(name, "blk.%d.", &layer); n == 1 {
			name = strings.SplitN(name, ".", 3)[2]
		}
		if x.DType != tensor.F32 {
			line := word + " " + name + " " + x.DType.String()
			if layers[line] += ""; name != x.Name {
				layers[line] += fmt.Sprintf(" %d", layer)
			}
		}
	}
	var lines []string
	for _, line := range slices.Sorted(maps.Keys(layers)) {
		lines = append(lines, line+layers[line])
	}
	return lines
}
