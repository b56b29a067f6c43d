package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/scripts"
)

// TestRecorderFlags: golden has the flags of golden.py, with its defaults, and golden.py names the packages
// of the files of requirements.
func TestRecorderFlags(t *testing.T) {
	declared := map[string]string{}
	definition := regexp.MustCompile(`\.add_argument\("--([a-z-]+)"((?:[^()]|\([^()]*\))*)\)`)
	for _, m := range definition.FindAllStringSubmatch(string(scripts.Recorder), -1) {
		declared[m[1]] = m[2]
	}
	require.Equal(t, strings.Count(string(scripts.Recorder), `.add_argument("--`), len(declared))
	newRecorderFlags().flags.VisitAll(func(f *pflag.Flag) {
		definition, known := declared[f.Name]
		assert.True(t, known, f.Name)
		assert.Equal(t, f.Value.Type() == "bool", strings.Contains(definition, "store_true"), f.Name)
		assert.Equal(t, f.Value.Type() == "stringArray", strings.Contains(definition, `action="append"`), f.Name)
		if value := regexp.MustCompile(`default=("[^"]*"|[^,]+)`).FindStringSubmatch(definition); value != nil {
			assert.Equal(t, strings.Trim(value[1], `"`), f.DefValue, f.Name)
		}
		if words := regexp.MustCompile(`choices=\[([^]]*)\]`).FindStringSubmatch(definition); words != nil {
			for _, word := range regexp.MustCompile(`\w+`).FindAllString(words[1], -1) {
				assert.NoError(t, f.Value.Set(word), f.Name)
				assert.Equal(t, word, f.Value.String())
			}
		}
		delete(declared, f.Name)
	})
	assert.Empty(t, declared)
	for _, file := range []string{"requirements-native.txt", "requirements-v1.txt"} {
		data, err := os.ReadFile(filepath.Join("..", "..", "scripts", file))
		require.NoError(t, err)
		packages := regexp.MustCompile(`(?m)^\w+==.*`).FindAllString(string(data), -1)
		assert.Contains(t, string(scripts.Recorder), "\n  pip install "+strings.Join(packages, " ")+"\n", file)
	}
}
