// Package text holds the renderers that every report and every error of the module
// shares: foreign text made safe to print (Quote, Word, Literal, Line), counts and sizes
// (Plural, Grouped, Bytes, ExactBytes, Percent), numbers in ranges (Ranges; Spans reads them),
// the order of tensor names (CompareNames), tables with aligned columns (Table) and with named
// ones (Sheet: TSV, CSV and Markdown too). It knows nothing of models, imports nothing of the
// module and prints nothing itself.
package text
