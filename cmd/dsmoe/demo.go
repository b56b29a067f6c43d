package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// demonstration is the config of a small DeepSeek-V3, and the golden pack of its synthetic weights.
//
//go:embed demo
var demonstration embed.FS

// demoSeed is the seed of the weights that the pack was recorded with.
const demoSeed = 2024

// demoDocuments is the JSON document of dsmoe demo.
var demoDocuments = cli.Documents{cli.DocumentOf[*demo]("dsmoe.demo/1")}

func newDemo() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo [DIR]",
		Short: "Write a small checkpoint and its golden pack, to try verify on",
		Long: `Writes a DeepSeek-V3 of three layers with synthetic weights to DIR/checkpoint,
writes the golden pack that transformers recorded of it to DIR/golden, and
prints what to run next. DIR must not exist; by default it is dsmoe-demo.`,
		Example: `  dsmoe demo
  dsmoe verify dsmoe-demo/checkpoint dsmoe-demo/golden`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.Misuse(cmd, fmt.Sprintf("want one DIR, but %d given", len(args)))
			}
			return nil
		},
		Annotations: cli.Exits("DIR is written", ""),
	}
	cli.JSONFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		given := append(args, "dsmoe-demo")[0]
		dir := filepath.Clean(given)
		if err := os.Mkdir(dir, 0o777); err != nil {
			if errors.Is(err, fs.ErrExist) {
				return problem.New(given, "exists already", "remove it, or give another DIR")
			}
			return problem.System(given, "", err)
		}
		if err := writeDemo(cmd.Context(), dir, cmd.ErrOrStderr()); err != nil {
			os.RemoveAll(dir)
			return err
		}
		if strings.HasPrefix(dir, "-") {
			dir = "./" + dir // no flag
		}
		d := &demo{Path: dir, Checkpoint: dir + "/checkpoint", Golden: dir + "/golden"}
		verify := cli.CommandLine([]string{"dsmoe", "verify", d.Checkpoint, d.Golden})
		edit := cli.CommandLine([]string{"sed", "-i.bak", `s/"norm_topk_prob": true/"norm_topk_prob": false/`,
			d.Checkpoint + "/config.json"})
		d.Commands = []string{verify, edit, verify}
		return demoDocuments.Print(cmd, d)
	}
	return cmd
}

// writeDemo fills dir. It ends within a second, and takes no notice of an interruption.
func writeDemo(ctx context.Context, dir string, stderr io.Writer) error {
	files, err := fs.Sub(demonstration, "demo")
	if err != nil {
		return err
	}
	if err := os.CopyFS(dir, files); err != nil {
		return err
	}
	config := filepath.Join(dir, "config.json")
	o := synthOptions{seed: demoSeed, gates: syntheticGates}
	if _, err := synthesise(context.WithoutCancel(ctx), config, filepath.Join(dir, "checkpoint"), o, stderr); err != nil {
		return err
	}
	return os.Remove(config)
}

// demo says what was written, and what to do with it.
type demo struct {
	Path       string   `json:"path"`       // the directory, as it was given
	Checkpoint string   `json:"checkpoint"` // the checkpoint in it
	Golden     string   `json:"golden"`     // its golden pack
	Commands   []string `json:"commands"`   // to run next: verify, a wrong edit of config.json, verify
}

// WriteText writes a line that says what it is, and the commands.
func (d *demo) WriteText(w io.Writer) error {
	_, err := fmt.Fprintf(w, `%s: a small DeepSeek-V3 with synthetic weights, and its golden pack

  %s        # passes
  %s        # a mistake: norm_topk_prob is false
  %s        # fails, and names the cause
`, text.Quote(d.Path), d.Commands[0], d.Commands[1], d.Commands[2])
	return err
}
