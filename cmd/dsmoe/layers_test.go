package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLayers holds the imports of every package, tests aside, against the layers: a
// package may import those of the module that stand beside it here, and none other;
// package text every one may import. A package that is not in the list is a new layer:
// draw it on the map of ARCHITECTURE.md too.
func TestLayers(t *testing.T) {
	layers := map[string][]string{
		"cmd/dsmoe": {"cmd/dsmoe/internal/cli", "text/page", "convert", "convert/checkpoint", "convert/torchbin", "convert/remote", "convert/plan", "verify", "verify/pack", "verify/report",
			"inspect", "inspect/diff", "inspect/header", "inspect/stats", "inspect/experts", "inspect/router", "inspect/routing", "inspect/report",
			"model", "model/count", "model/synth", "model/weights", "model/table", "config", "model/tensor", "scripts", "text/problem"},
		"cmd/dsmoe/internal/cli": {"text/page", "text/problem", "convert", "convert/checkpoint", "convert/remote", "model/weights", "model/tensor"},

		"convert":                   {"convert/internal/engine", "convert/plan", "convert/checkpoint", "convert/format", "convert/source", "model/tensor", "text/problem"},
		"convert/internal/engine":   {"convert/internal/output", "convert/internal/progress", "convert/plan", "convert/operation", "convert/checkpoint", "convert/source", "convert/format", "convert/remote", "convert/internal/disk", "convert/internal/manifest", "model/digest", "model/tensor", "text/problem"},
		"convert/internal/output":   {"convert/internal/progress", "convert/plan", "convert/checkpoint", "convert/format", "convert/source", "convert/remote", "convert/internal/disk", "convert/internal/manifest", "model/digest", "text/problem"},
		"convert/internal/progress": {"convert/plan", "convert/internal/disk", "model/tensor"},
		"convert/internal/manifest": {"convert/plan", "convert/operation", "convert/checkpoint", "convert/format", "convert/source", "model/digest", "model/tensor", "text/problem"},
		"convert/plan":              {"convert/operation", "convert/checkpoint", "convert/format", "model/digest", "model/weights", "model/table", "config", "model/tensor", "text/problem"},
		"convert/operation":         {"model/tensor"},
		"convert/checkpoint":        {"convert/safetensors", "convert/torchbin", "convert/gguf", "convert/format", "convert/source", "convert/remote", "model/digest", "model/weights", "config", "model/tensor", "text/problem"},
		"convert/safetensors":       {"convert/format", "model/tensor", "text/problem"},
		"convert/torchbin":          {"convert/format", "model/tensor", "text/problem"},
		"convert/gguf":              {"convert/format", "model/table", "config", "model/tensor", "text/problem"},
		"convert/format":            {"config", "model/tensor", "text/problem"},
		"convert/source":            {"convert/format", "convert/internal/disk", "text/problem"},
		"convert/remote":            {"convert/source", "convert/format", "model/digest", "text/problem"},
		"convert/remote/remotetest": {"convert/remote"}, // for tests
		"convert/internal/disk":     {},
		"convert/internal/fixture":  {"config/configtest", "convert/format", "model/weights", "model/tensor"}, // for tests

		"verify":            {"verify/diagnose", "verify/pack", "verify/bounds", "verify/report", "model", "model/weights", "model/table", "config", "model/tensor", "text/problem"},
		"verify/pack":       {"model", "model/weights", "model/table", "config", "model/tensor", "text/problem"},
		"verify/bounds":     {"model", "config", "model/tensor"},
		"verify/report":     {"verify/pack", "verify/bounds", "config", "text/page"},
		"verify/diagnose":   {"verify/pack", "verify/bounds", "verify/report", "model", "model/weights", "model/table", "config", "model/tensor"},
		"verify/verifytest": {"verify/pack", "model", "config", "model/tensor"}, // for tests and scripts

		"inspect":             {"text/page", "model/weights", "model/table", "config", "model/tensor", "text/problem"},
		"inspect/header":      {"inspect", "text/page", "model/count", "model/digest", "model/weights", "model/table", "config", "model/tensor", "text/problem"},
		"inspect/stats":       {"inspect", "inspect/diff", "model/digest", "inspect/header", "text/page", "model/weights", "model/table", "config", "model/tensor", "text/problem"},
		"inspect/matrix":      {"inspect", "model", "model/weights", "model/tensor"},
		"inspect/experts":     {"inspect", "inspect/diff", "inspect/matrix", "text/page", "model", "model/weights", "model/table", "model/tensor", "text/problem"},
		"inspect/router":      {"inspect", "inspect/matrix", "text/page", "model/weights", "model/table", "config", "model/tensor"},
		"inspect/routing":     {"inspect", "text/page", "model", "model/weights", "model/table", "config", "model/tensor"},
		"inspect/diff":        {"inspect", "inspect/matrix", "text/page", "model", "model/weights", "model/table", "config", "model/tensor"},
		"inspect/tensors":     {"inspect", "inspect/matrix", "model/weights", "model/table", "model/tensor"},
		"inspect/report":      {"inspect", "inspect/tensors", "inspect/diff", "inspect/header", "inspect/stats", "inspect/experts", "inspect/router", "inspect/routing", "text/page", "model/weights", "model/table", "text/problem"},
		"inspect/inspecttest": {"inspect", "config", "config/configtest", "model/synth", "model/weights", "model/table", "model/tensor"}, // for tests

		"model":                   {"model/weights", "model/table", "config", "model/tensor", "model/internal/kernel", "model/internal/arena"},
		"model/count":             {"model/table", "config", "model/tensor"},
		"model/synth":             {"model/weights", "model/table", "config", "model/tensor"},
		"model/weights":           {"model/table", "config", "model/tensor", "text/problem"},
		"model/table":             {"config", "model/tensor"},
		"model/tensor":            {"model/internal/kernel"},
		"model/tensor/tensortest": {"model/tensor"}, // for tests
		"model/internal/kernel":   {},
		"model/internal/arena":    {},

		"scripts":             {},
		"scripts/ggufblocks":  {"model/tensor"},
		"scripts/hub":         {"convert/remote/remotetest"},
		"scripts/mistakes":    {"convert/checkpoint", "verify", "verify/pack", "verify/bounds", "verify/diagnose", "verify/report", "verify/verifytest", "model", "model/weights", "model/table", "config", "model/tensor"},
		"scripts/s3":          {},
		"scripts/scale":       {"convert/checkpoint", "convert/plan", "convert/remote/remotetest", "verify/pack", "verify/verifytest", "model", "model/table", "config", "model/tensor"},
		"scripts/sensitivity": {"convert/checkpoint", "verify", "verify/pack", "verify/report", "model/weights", "model/table", "model/tensor"},

		"config":            {"text/problem"},
		"model/digest":      {},
		"config/configtest": {"config"}, // for tests
		"text":              {},
		"text/page":         {},
		"text/problem":      {},
	}
	for pkg, imports := range imports(t, filepath.Join("..", "..")) {
		allowed, known := layers[pkg]
		assert.True(t, known, "package %s is not in the list", pkg)
		for _, imported := range imports {
			everywhere := imported == "text" && pkg != "text"
			assert.True(t, everywhere || slices.Contains(allowed, imported), "%s must not import %s", pkg, imported)
		}
	}
}

// imports returns the packages under root and what they import of the module.
func imports(t *testing.T, root string) map[string][]string {
	found := map[string][]string{}
	require.NoError(t, filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && file != root {
			if _, err := os.Stat(filepath.Join(file, "go.mod")); err == nil {
				return fs.SkipDir // a module of its own
			}
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(file))
		require.NoError(t, err)
		pkg := filepath.ToSlash(rel)
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		require.NoError(t, err)
		found[pkg] = append(found[pkg], []string{}...)
		for _, i := range f.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			require.NoError(t, err)
			if rest, ok := strings.CutPrefix(name, "dsmoe/"); ok {
				found[pkg] = append(found[pkg], path.Clean(rest))
			}
		}
		return nil
	}))
	require.Contains(t, found, "config")
	return found
}

// TestFamiliesStayInTheirFiles: no code asks for a family by its name. Names stand where families are declared.
func TestFamiliesStayInTheirFiles(t *testing.T) {
	names := regexp.MustCompile(`"(deepseek(_v[0-9]+|_vl_v2)|kimi_k2|axk1|glm4_moe(_lite)?|glm_moe_dsa|dots1|solar_open|hy_v3|` +
		`minimax_m2|exaone_moe|ernie4_5_moe|sarvam_m(la|oe)|bailing_(moe(_v2)?|hybrid)|kimi_linear|mimo_v2_flash|afmoe|qwen3_next|flint|` +
		`mistral4|axk2|laguna|kolibri1|lara_mini|dots3_note(_text)?|` +
		`beam|step3p5|minimax_m3_vl(_text)?|glm5_next(_text)?|qwen3_5_moe(_text)?|hy_v4|mistral_large(_3|4(_text)?)|nemotron_h|longcat_flash)"`)
	declared := regexp.MustCompile(`^(config|model/table|convert/gguf)/family_\w+\.go$|^config/wrapper\.go$|` +
		`^convert/gguf/(architecture|models)\.go$|_test\.go$`)
	root := filepath.Join("..", "..")
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		name, err := filepath.Rel(root, path)
		require.NoError(t, err)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		code := regexp.MustCompile(`//.*`).ReplaceAll(text, nil)
		if found := names.Find(code); !declared.MatchString(filepath.ToSlash(name)) {
			require.Empty(t, found, name)
		}
		return nil
	}))
}
