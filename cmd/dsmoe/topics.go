package main

import (
	"embed"
	"strings"

	"github.com/spf13/cobra"

	"dsmoe/cmd/dsmoe/internal/cli"
)

// topics are the texts of `dsmoe help TOPIC`: NAME.txt, whose first line is its summary.
//
//go:embed topics
var topics embed.FS

// topicsTemplate lists topics as `dsmoe help` takes them.
var topicsTemplate = strings.NewReplacer("Additional help topics:", "Topics of dsmoe help:",
	".CommandPath .CommandPathPadding", ".Name .NamePadding")

// addTopics adds a command without flags for each topic.
func addTopics(root *cobra.Command) {
	files, _ := topics.ReadDir("topics") // embedded
	for _, f := range files {
		data, _ := topics.ReadFile("topics/" + f.Name())
		summary, body, _ := strings.Cut(string(data), "\n\n")
		topic := &cobra.Command{Use: strings.TrimSuffix(f.Name(), ".txt"), Short: summary, Long: body}
		topic.SuggestFor = map[string][]string{"conversions": {"gguf", "types", "quantise", "quantize", "quantization"},
			"verdicts": {"limits", "tolerance", "exit"}, "traces": {"engines", "vllm", "llama"}}[topic.Name()]
		topic.SetHelpFunc(func(cmd *cobra.Command, _ []string) { cmd.Print(cli.Narrow(cmd.OutOrStdout(), cmd.Long)) })
		root.AddCommand(topic)
	}
}
