module github.com/penstock-gpu/penstock

go 1.26
