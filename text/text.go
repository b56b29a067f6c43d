// Package text holds the renderers that every report and every error of the module
// shares: foreign text made safe to print (Quote, Word, Literal, Line), counts and sizes
// (Plural, Grouped, Bytes, ExactBytes, Percent), numbers in ranges (Ranges), the order of tensor
// names (CompareNames) and tables with aligned columns (Table). It knows nothing of
// models, imports nothing of the module and prints nothing itself.
package text
